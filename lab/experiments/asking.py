"""Sends images in each of their forms to a server that runs, for `ensemble experiments payloads`."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ensemble_serving.transports import NoResponse, Request, Response, connect, once
from lab.experiments.forms import Form
from scripts.errors import ScriptError

PREFIX, REGION = "es-payloads", "payloads"
# While nothing is sent the loop rests, and does not see that HAProxy closes what idles: it looks first for so long.
RESTS_S, SEES_S = 1.0, 0.05
# What a form is refused with for what it is.
REFUSED = frozenset({400, 413, 422})


class Asking:
    """A client of a server that runs, with one request at a time."""

    def __init__(self, http_url: str, grpc_url: str) -> None:
        """Connect by both ways."""
        self._loop = asyncio.Runner()
        self._transports = {"http": connect(http_url), "grpc": connect(grpc_url)}
        self._used = 0.0

    def __call__(self, form: Form, request: Request) -> bool:
        """Send a request; tell whether it was answered, False if it was refused for what it is.

        Raises:
            ScriptError: it failed in another way.
        """
        assert form.way is not None
        try:
            response = self._loop.run(self._send(form.way, request))
        except NoResponse as err:
            raise ScriptError(str(err)) from err
        if not response.ok and response.status not in REFUSED:
            raise ScriptError(f"{form.name} was answered with {response.status}: {response.body[:500]!r}")
        return response.ok

    async def _send(self, way: str, request: Request) -> Response:
        clock = asyncio.get_running_loop().time
        if clock() - self._used > RESTS_S:
            await asyncio.sleep(SEES_S)
        response = await self._transports[way].send(request)
        self._used = clock()
        return response

    def close(self) -> None:
        """Disconnect."""
        for transport in self._transports.values():
            self._loop.run(transport.close())
        self._loop.close()


def share_memory(config: dict[str, Any]) -> None:
    """Change a Serve config of this application, so that clients may use shared memory."""
    args = config["applications"][0]["args"]
    args["ingress"] = {**args.get("ingress", {}), "shared_memory_prefix": PREFIX}


def register(http_url: str, file: Path) -> None:
    """Let the server read a file of /dev/shm, for as long as it runs; raises ScriptError if it refuses."""
    body = json.dumps({"key": f"/{file.name}", "byte_size": file.stat().st_size}).encode()
    try:
        response = once(http_url, Request(f"/v2/systemsharedmemory/region/{REGION}/register", body))
    except NoResponse as err:
        raise ScriptError(str(err)) from err
    if not response.ok:
        raise ScriptError(f"shared memory: {response.body[:500]!r}")


@contextmanager
def region(size: int, prefix: str = PREFIX) -> Iterator[Path]:
    """Make a file of /dev/shm that the server may use; it is removed in the end."""
    file = Path("/dev/shm") / f"{prefix}-{os.getpid()}"  # noqa: S108
    file.write_bytes(bytes(size))
    try:
        yield file
    finally:
        file.unlink()
