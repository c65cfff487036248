"""Ray's dashboard: where Serve's REST interface is there, and the token that requests to it show."""

from __future__ import annotations

import os
from pathlib import Path

# The configuration that is deployed, and what became of it.
APPLICATIONS = "/api/serve/applications/"


def authorization() -> dict[str, str]:
    """The header; none where Ray asks for no token."""
    if os.environ.get("RAY_AUTH_MODE") != "token":
        return {}
    token = os.environ.get("RAY_AUTH_TOKEN")
    if token is None:
        # Without the variable, Ray's own place.
        file = os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token"
        token = Path(file).read_text(encoding="utf-8").strip()
    return {"Authorization": f"Bearer {token}"}
