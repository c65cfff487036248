"""Watches a server while inputs are sent: a bystander classifies a photograph, a thread reads the memory."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from multiprocessing.connection import Connection as Pipe
from typing import Any

from ensemble_serving.transports import NoResponse, Request, Transport, connect

ASK_EVERY_S = 0.05
# Longer than the server's own deadline.
PATIENCE_S = 60.0
OK, UNAVAILABLE = 200, 503
READ_EVERY_S = 0.01
# New processes, such as one that decodes in another's place, are looked for this often.
LOOK_EVERY_S = 0.5
PAGE = os.sysconf("SC_PAGE_SIZE")


class Bystander:
    """A client in a process of its own; while it is entered, it sends an image every 50 ms."""

    def __init__(self, host: str, port: int, image: bytes, key: str = "") -> None:
        """Set the server, what is sent, and the key that is shown."""
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_run, args=(theirs, host, port, image, key), name="bystander")

    def __enter__(self) -> Bystander:
        """Begin to ask; take the first answer as the right one."""
        self._process.start()
        self.report()
        return self

    def __exit__(self, *_: Any) -> None:
        """End the bystander."""
        self._pipe.send(None)
        self._process.join()

    def report(self) -> tuple[float, str, int]:
        """Return the longest wait since the last report, seconds, a wrong answer if any, and the number of answers.

        A refusal that says when to come again is not wrong. A request that is under way is waited for.
        """
        self._pipe.send("report")
        longest_s, wrong, count = self._pipe.recv()
        return longest_s, wrong, count


def _run(pipe: Pipe, host: str, port: int, image: bytes, key: str) -> None:
    shown = (("authorization", f"Bearer {key}"),) if key else ()
    asyncio.run(_ask(pipe, connect(f"http://{host}:{port}", timeout_s=PATIENCE_S, headers=shown), image))


async def _ask(pipe: Pipe, connection: Transport, image: bytes) -> None:
    longest, wrong, count, is_over = 0.0, "", 0, False
    right: str | None = None
    while not is_over:
        began = time.monotonic()
        label, problem = await _classify(connection, image)
        longest, count = max(longest, time.monotonic() - began), count + 1
        right = right or label
        if problem or (label and label != right):
            wrong = problem or f"{label}, not {right}"
        while pipe.poll(max(0.0, began + ASK_EVERY_S - time.monotonic())):
            if pipe.recv() is None:
                is_over = True
                break
            pipe.send((longest, wrong, count))
            longest, wrong, count = 0.0, "", 0
    await connection.close()


async def _classify(connection: Transport, image: bytes) -> tuple[str, str]:
    """Return the label, or what was wrong; neither for a refusal."""
    try:
        response = await connection.send(Request("/classify", image))
    except NoResponse as err:
        return "", str(err)
    if response.status == OK:
        return str(json.loads(response.body)["label"]), ""
    is_refusal = response.status == UNAVAILABLE and response.retry_after_s is not None
    return "", "" if is_refusal else f"{response.status} {response.body[:100]!r}"


def private_bytes(pid: int) -> int:
    """Return a process' resident memory but for what it may share; 0 if it is gone. This takes some microseconds."""
    with suppress(OSError, ValueError), open(f"/proc/{pid}/statm", encoding="ascii") as file:
        _, resident, shared, *_ = map(int, file.read().split())
        return (resident - shared) * PAGE
    return 0


class Memory(threading.Thread):
    """Reads the memory of a server's processes a hundred times per second.

    Attributes:
        peak: the most since `begin`, bytes.
    """

    def __init__(self, pids: Callable[[], Iterable[int]]) -> None:
        """Set what lists the server's processes."""
        super().__init__(name="memory", daemon=True)
        self._pids, self._over = pids, threading.Event()
        self._known = list(pids())
        self.peak = 0

    def begin(self) -> int:
        """Return the memory now, from which on the peak counts, bytes."""
        self.peak = now = sum(map(private_bytes, self._known))
        return now

    def run(self) -> None:
        """Read until the end."""
        looked = time.monotonic()
        while not self._over.wait(READ_EVERY_S):
            if time.monotonic() - looked > LOOK_EVERY_S:
                self._known, looked = list(self._pids()), time.monotonic()
            self.peak = max(self.peak, sum(map(private_bytes, self._known)))

    def stop(self) -> None:
        """End the watch."""
        self._over.set()
        self.join()
