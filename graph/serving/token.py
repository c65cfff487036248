"""Ray's token, as requests to its dashboard show it."""

from __future__ import annotations

import os
from pathlib import Path


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
