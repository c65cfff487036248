"""Reads Serve's state in a replica's process by Serve's own client, where Serve has no public interface."""

from collections import Counter
from importlib import import_module
from typing import Any

import ray

from deployments.ray_internals.compatibility import SERVE_CLIENT, has


def _client() -> Any:
    """Return Serve's client in this process; None where Serve does not run, or this Ray has another one."""
    # Without Ray, Serve would start a cluster.
    is_known = ray.is_initialized() and has(SERVE_CLIENT)
    return import_module("ray.serve.context")._get_global_client() if is_known else None


def http_host() -> str:
    """Return Serve's `http_options.host`; empty where it is not known."""
    client = _client()
    return "" if client is None else client.http_config.host or ""


def replicas(application: str) -> dict[str, Counter[tuple[str, str]]]:
    """Count an application's replicas by deployment, state, such as `RUNNING`, and machine's address.

    Serve's public status counts them by state, but not by machine.
    """
    return {
        name: Counter((_name(each["state"]), each["node_ip"] or "") for each in deployment["replicas"])
        for name, deployment in _deployments(application).items()
    }


def user_config(application: str, deployment: str) -> dict[str, Any]:
    """Return the `user_config` of a deployment, as Serve's controller has it now; empty where it is not known."""
    found = _deployments(application).get(deployment)
    return {} if found is None else dict(found["deployment_config"]["user_config"] or {})


def _deployments(application: str) -> dict[str, Any]:
    client = _client()
    return {} if client is None else dict(client.get_serve_details()["applications"][application]["deployments"])


def _name(state: Any) -> str:
    return str(getattr(state, "value", state))
