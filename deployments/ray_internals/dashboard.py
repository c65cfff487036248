"""Ray's dashboard, which has Serve's REST interface: its address, and the token that requests carry."""

import os
from importlib import import_module
from pathlib import Path

from deployments.contract.hosts import LOOPBACK
from deployments.ray_internals.compatibility import DASHBOARD_ADDRESS, has

# The path of Serve's deployed configuration and its state.
APPLICATIONS = "/api/serve/applications/"
# The dashboard's address in Ray's key-value store.
NAMESPACE, KEY = "dashboard", "dashboard"
# The port of Ray's dashboard. Serve's interface takes another one if something else listens there, and announces it.
PORT = 8265
# A resource that the head alone has; a task that needs some of it runs there.
ON_HEAD = {"node:__internal_head__": 0.001}


def url() -> str:
    """Return the URL of the dashboard, in a process of the cluster."""
    if not has(DASHBOARD_ADDRESS):
        return f"http://{LOOPBACK}:{PORT}"
    store = import_module("ray.experimental.internal_kv")
    return f"http://{(store._internal_kv_get(KEY, namespace=NAMESPACE) or b'').decode()}"


def authorization() -> dict[str, str]:
    """Return the header with the token; no header if Ray needs no token."""
    if os.environ.get("RAY_AUTH_MODE") != "token":
        return {}
    token = os.environ.get("RAY_AUTH_TOKEN")
    if token is None:
        file = os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token"
        token = Path(file).read_text(encoding="utf-8").strip()
    return {"Authorization": f"Bearer {token}"}
