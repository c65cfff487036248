"""A bystander asks for a small photograph every so often, in a process of its own, and tells its longest wait."""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from multiprocessing.connection import Connection as Pipe
from typing import Any

from ensemble_serving.transports import NoResponse, Request, Transport, connect

EVERY_S = 0.05
# Longer than the server's own deadline.
PATIENCE_S = 60.0
OK = 200


class Bystander:
    """Asks from entry to exit."""

    def __init__(self, host: str, port: int, image: bytes, key: str = "") -> None:
        """Set the server, what is sent, and the key that is shown."""
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_run, args=(theirs, host, port, image, key), name="bystander")

    def __enter__(self) -> Bystander:
        """Begin to ask."""
        self._process.start()
        # It is there when its first answer is.
        self.told()
        return self

    def __exit__(self, *_: Any) -> None:
        """End."""
        self._pipe.send(None)
        self._process.join()

    def told(self) -> tuple[float, str]:
        """The longest wait since this was asked last, seconds, and what was wrong with an answer, if one was.

        A request that is under way is waited for.
        """
        self._pipe.send("tell")
        longest_s, wrong = self._pipe.recv()
        return longest_s, wrong


def _run(pipe: Pipe, host: str, port: int, image: bytes, key: str) -> None:
    shown = (("authorization", f"Bearer {key}"),) if key else ()
    asyncio.run(_ask(pipe, connect(f"http://{host}:{port}", timeout_s=PATIENCE_S, headers=shown), image))


async def _ask(pipe: Pipe, connection: Transport, image: bytes) -> None:
    longest, wrong, last = 0.0, "", False
    while not last:
        began = time.monotonic()
        status, content = await _post(connection, image)
        longest = max(longest, time.monotonic() - began)
        if status != OK:
            wrong = f"{status} {content[:100]!r}"
        while pipe.poll(max(0.0, began + EVERY_S - time.monotonic())):
            if pipe.recv() is None:
                last = True
                break
            pipe.send((longest, wrong))
            longest, wrong = 0.0, ""
    await connection.close()


async def _post(connection: Transport, image: bytes) -> tuple[int, bytes]:
    try:
        response = await connection.send(Request("/classify", image))
        return response.status, response.body
    except NoResponse as err:
        return 0, str(err).encode()
