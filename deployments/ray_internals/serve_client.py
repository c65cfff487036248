"""Reads Serve's state in a replica's process by Serve's own client, where Serve has no public interface."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from deployments.ray_internals.compatibility import SERVE_CLIENT, has

logger = logging.getLogger("ray.serve")

# The controller is asked no more often than this, however many people look at the page.
KEPT_S = 2.0


def _client() -> Any:
    """Return Serve's client in this process; None where Serve does not run, or this Ray has another one."""
    return import_module("ray.serve.context")._get_global_client() if has(SERVE_CLIENT) else None


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


class Replicas:
    """Asks the controller, and keeps its answer for a moment."""

    def __init__(self, application: str) -> None:
        self._application = application
        self._asked = -KEPT_S
        self._known: Mapping[str, Mapping[tuple[str, str], int]] = {}

    async def __call__(self) -> Mapping[str, Mapping[tuple[str, str], int]]:
        """Count the replicas by deployment, state and machine; returns the last counts if the controller fails."""
        now = time.monotonic()
        if now - self._asked >= KEPT_S:
            self._asked = now
            try:
                self._known = await asyncio.to_thread(replicas, self._application)
            except Exception:
                logger.debug("asking for the replicas", exc_info=True)
        return self._known
