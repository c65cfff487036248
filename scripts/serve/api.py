"""A client of Ray Serve's REST interface, which `serve deploy` and `serve status` use too."""

import json
import ssl
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from deployments.ray_internals.dashboard import APPLICATIONS, authorization
from scripts.errors import ScriptError

START_TIMEOUT_S, TIMEOUT_S, SAY_EVERY_S = 60.0, 30.0, 5.0


class Answer(NamedTuple):
    """An answer over HTTP."""

    status: int
    text: str


def send(
    url: str, timeout_s: float, method: str = "GET", body: bytes | None = None, headers: Mapping[str, str] | None = None
) -> Answer:
    """Send a request to a server of this user, past every proxy; its certificate is for clients to verify.

    The standard library takes 10 MB less than httpx in a process that lasts as long as the server. It follows no
    redirection by itself, so that a token stays here.

    Raises:
        OSError: no answer comes.
    """
    parts = urlsplit(url)
    connection = HTTPConnection(parts.netloc, timeout=timeout_s)
    if parts.scheme == "https":
        context = ssl._create_unverified_context()  # noqa: S323
        connection = HTTPSConnection(parts.netloc, timeout=timeout_s, context=context)
    with closing(connection):
        try:
            connection.request(method, parts.path, body, headers or {})
            answer = connection.getresponse()
            return Answer(answer.status, answer.read().decode(errors="replace"))
        except HTTPException as err:
            raise OSError(f"the answer can't be read: {err}") from err


class Waiting:
    """Prints the reasons of a wait: first after a quiet time, then every few seconds."""

    def __init__(self, beginning: str, quiet_s: float) -> None:
        """Begin to wait; each line begins with these words."""
        self._beginning, self._began = beginning, time.monotonic()
        self._next = self._began + quiet_s

    def print(self, waited_for: Callable[[], str]) -> None:
        """Print a reason on stderr, if it is time to."""
        if (now := time.monotonic()) > self._next:
            self._next = now + SAY_EVERY_S
            print(f"{self._beginning}, {now - self._began:.0f} s: {waited_for()}", file=sys.stderr, flush=True)


class ServeApi:
    """Deploys, reports and shuts down the applications of a cluster."""

    def __init__(self, dashboard: str) -> None:
        """Set the root of the cluster's dashboard, `http://127.0.0.1:8265`."""
        self._dashboard, self._headers = dashboard, {**authorization(), "Content-Type": "application/json"}

    def _send(self, method: str, body: bytes | None = None, timeout_s: float = TIMEOUT_S) -> Answer:
        return send(f"{self._dashboard}{APPLICATIONS}", timeout_s, method, body, self._headers)

    def deploy(self, config: Mapping[str, Any], stop: threading.Event | None = None) -> None:
        """Deploy a Serve config; not if `stop` is set before the dashboard answers.

        Raises:
            ScriptError: Serve refuses it, or does not answer.
        """
        give_up = time.monotonic() + START_TIMEOUT_S
        while stop is None or not stop.is_set():
            try:
                answer = self._send("PUT", json.dumps(config).encode())
                if answer.status == HTTPStatus.OK:
                    return
                problem = f"Serve refuses the configuration: {answer.text[:2000]}"
                is_final = answer.status == HTTPStatus.BAD_REQUEST
            except OSError as err:
                problem, is_final = f"no server answers at {self._dashboard}: {err}; is it running?", False
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
        """Describe the states of the applications in words, and what each deployment waits for."""
        states = []
        for application in self.applications():
            waiting = [
                f"{each['name']} {each['status']}{': ' if each.get('message') else ''}{each.get('message', '')}"
                for each in application["deployments"].values()
                if each["status"] != "HEALTHY"
            ]
            states.append(f"Serve: {application['status']} ({'; '.join(waiting) or 'every deployment is healthy'})")
        return " ".join("; ".join(states).split()) or "Serve reports no application"

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
            return list(json.loads(self._send("GET").text)["applications"].values())
        except (OSError, ValueError, KeyError):
            return []

    def shut_down(self, timeout_s: float) -> None:
        """Stop every application; its replicas finish their requests.

        Raises:
            OSError: Serve does not answer in time, or could not stop them.
        """
        if (answer := self._send("DELETE", timeout_s=timeout_s)).status != HTTPStatus.OK:
            raise OSError(f"Serve did not stop the applications: {answer.text}")


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
