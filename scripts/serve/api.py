"""A client of Ray Serve's REST interface, which `serve deploy` and `serve status` use too."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

import httpx

from deployments.ray_internals.dashboard import APPLICATIONS, authorization
from scripts.errors import ScriptError

START_TIMEOUT_S = 60.0


class ServeApi:
    """Deploys, reports and shuts down the applications of a cluster."""

    def __init__(self, dashboard: str) -> None:
        """Set the root of the cluster's dashboard, `http://127.0.0.1:8265`."""
        self._client = httpx.Client(base_url=dashboard, headers=authorization(), timeout=30, trust_env=False)

    def deploy(self, config: Mapping[str, Any], stop: threading.Event | None = None) -> None:
        """Deploy a Serve config; not if `stop` is set before the dashboard answers.

        Raises:
            ScriptError: Serve refuses it, or does not answer.
        """
        give_up = time.monotonic() + START_TIMEOUT_S
        while stop is None or not stop.is_set():
            try:
                answer = self._client.put(APPLICATIONS, json=config)
                if answer.status_code == httpx.codes.OK:
                    return
                problem = f"Serve refuses the configuration: {answer.text[:2000]}"
                is_final = answer.status_code == httpx.codes.BAD_REQUEST
            except httpx.TransportError as err:
                problem, is_final = f"no server answers at {self._client.base_url}: {err}; is it running?", False
            # The dashboard listens before it can answer.
            if is_final or time.monotonic() > give_up:
                raise ScriptError(problem)
            time.sleep(0.1)

    def failure(self) -> str | None:
        """Return the reason why an application can't be served, if one can't."""
        for application in self.applications():
            if application["status"] in {"DEPLOY_FAILED", "UNHEALTHY"}:
                messages = [application["message"], *(d["message"] for d in application["deployments"].values())]
                return explain(messages)
        return None

    def progress(self) -> str:
        """Describe the states of the applications and their deployments in words."""
        states = []
        for application in self.applications():
            nodes = (f"{each['name']} {each['status']}" for each in application["deployments"].values())
            states.append(f"Serve: {application['status']} ({', '.join(nodes)})")
        return "; ".join(states) or "Serve reports no application"

    def are_healthy(self) -> bool:
        """Tell whether Serve reports every deployment as healthy."""
        found = [each["status"] for application in self.applications() for each in application["deployments"].values()]
        return bool(found) and set(found) == {"HEALTHY"}

    def runs(self, deployment: str) -> bool:
        """Tell whether Serve counts a replica as running, for each deployment of this name."""
        found = [each["deployments"].get(deployment) for each in self.applications()]
        states = [{replica["state"] for replica in each["replicas"]} for each in found if each is not None]
        return all("RUNNING" in each for each in states)

    def applications(self) -> list[dict[str, Any]]:
        """Request Serve's report of each application; empty while Serve does not answer."""
        try:
            return list(self._client.get(APPLICATIONS).json()["applications"].values())
        except (httpx.HTTPError, ValueError, KeyError):
            return []

    def shut_down(self, timeout_s: float) -> None:
        """Stop every application; its replicas finish their requests.

        Raises:
            httpx.HTTPError: Serve does not answer in time, or could not stop them.
        """
        self._client.delete(APPLICATIONS, timeout=timeout_s).raise_for_status()


def explain(messages: list[str]) -> str:
    """Return the configuration error in a failed application's messages, or else all messages without tracebacks."""
    for message in messages:
        for line in reversed(message.splitlines()):
            if "ConfigurationError: " in line:
                return line.partition("ConfigurationError: ")[2]
    return "\n".join(_without_traceback(message) for message in messages if message)


def _without_traceback(message: str) -> str:
    """Replace the traceback in a message by the exception at its end."""
    told, traceback, rest = message.partition("Traceback (most recent call last):")
    if not traceback:
        return message
    return f"{told.rstrip().rstrip(':')}: {rest.strip().splitlines()[-1].strip()}"
