"""Watches a server while inputs are sent: a bystander classifies a photograph, a thread reads the memory."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Self

import msgspec
import numpy as np

from ensemble_capacity.load.generator import Generator
from ensemble_capacity.load.load import Arrivals, Target
from ensemble_capacity.load.protocols import Classify
from ensemble_capacity.load.records import RIGHT, Records, latency_ms, ok, outcome
from ensemble_serving.transports import Request, once
from scripts.errors import ScriptError

ASK_EVERY_S = 0.05
# Longer than the server's own deadline.
PATIENCE_S = 60.0
UNAVAILABLE = 503
READ_EVERY_S = 0.01
# New processes, such as one that decodes in another's place, are looked for this often.
LOOK_EVERY_S = 0.5
PAGE = os.sysconf("SC_PAGE_SIZE")


class Bystander:
    """A client that sends an image every 50 ms while it is entered; the first answer is taken as the right one."""

    def __init__(self, url: str, image: bytes, key: str = "") -> None:
        """Ask for the right label, again while the server refuses; raises ScriptError if it does for too long."""
        request = Request("/classify", image, (("authorization", f"Bearer {key}"),) if key else ())
        give_up = time.monotonic() + PATIENCE_S
        while not (response := once(url, request, timeout_s=PATIENCE_S)).ok:
            if time.monotonic() > give_up:
                raise ScriptError(f"the bystander was answered {response.status}: {response.body[:200]!r}")
            time.sleep(ASK_EVERY_S)
        label = msgspec.json.decode(response.body)["label"]
        target = Target(url, Classify(), (image,), (label,), key=key, timeout_s=PATIENCE_S)
        self._generator = Generator(target, Arrivals(1 / ASK_EVERY_S, "constant"))

    def __enter__(self) -> Self:
        """Begin to ask."""
        self._generator.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        """Stop asking."""
        self._generator.__exit__(*error)

    @property
    def answers(self) -> int:
        """The number of requests that are over."""
        return self._generator.count

    def report(self, since: float) -> tuple[float, str]:
        """Return the longest wait in seconds, and a wrong answer if any, of the requests that ended after a time.

        A refusal (503) is not wrong. Requests that are due by now are waited for.
        """
        until = time.perf_counter()
        due = int((until - self._generator.began) / ASK_EVERY_S) - 1
        while np.count_nonzero((found := self._generator.records())["due"] < until) < due and not self._generator.ended:
            time.sleep(READ_EVERY_S)
        return judged(found[found["done"] > since])


def judged(found: Records) -> tuple[float, str]:
    """Return the longest wait, seconds, and what was wrong with an answer; empty for nothing."""
    wrong = found[~(ok(found) & (found["flags"] & RIGHT > 0)) & (found["status"] != UNAVAILABLE)]
    longest_s = float(latency_ms(found).max()) / 1000 if len(found) else 0.0
    return longest_s, f"{outcome(int(wrong[0]['status']))}, or another label" if len(wrong) else ""


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
