"""What Serve's own client knows in a process of a replica, and what has no public way to be read there."""

from __future__ import annotations

from collections import Counter
from typing import Any

from ray.serve._private.common import ReplicaState
from ray.serve.context import _get_global_client


def http_host() -> str:
    """Serve's `http_options.host`; empty where Serve does not run."""
    client = _get_global_client()
    return "" if client is None else client.http_config.host or ""


def replicas(application: str) -> dict[str, Counter[tuple[str, str]]]:
    """By deployment, the number of an application's replicas by their state, such as `RUNNING`, and machine's address.

    Serve's public status counts them by state, but not by machine.
    """
    return {
        name: Counter((ReplicaState(each["state"]).value, each["node_ip"] or "") for each in deployment["replicas"])
        for name, deployment in _deployments(application).items()
    }


def user_config(application: str, deployment: str) -> dict[str, Any]:
    """The `user_config` of a deployment, as Serve's controller has it now."""
    return dict(_deployments(application)[deployment]["deployment_config"]["user_config"] or {})


def _deployments(application: str) -> dict[str, Any]:
    client = _get_global_client()
    return {} if client is None else dict(client.get_serve_details()["applications"][application]["deployments"])
