"""The memory of a server's processes, looked at a hundred times a second."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

EVERY_S = 0.01
# New processes, such as one that decodes in another's place, are looked for this often.
LOOK_EVERY_S = 0.5
PAGE = os.sysconf("SC_PAGE_SIZE")


def private_bytes(pid: int) -> int:
    """A process' resident memory but for what it may share; 0 if it is gone. Counting it takes some microseconds."""
    with suppress(OSError, ValueError), open(f"/proc/{pid}/statm", encoding="ascii") as file:
        _, resident, shared, *_ = map(int, file.read().split())
        return (resident - shared) * PAGE
    return 0


class Memory(threading.Thread):
    """Watches a server's memory."""

    def __init__(self, pids: Callable[[], Iterable[int]]) -> None:
        """Set what lists the server's processes."""
        super().__init__(name="memory", daemon=True)
        self._pids, self._over = pids, threading.Event()
        self._known = list(pids())
        self.peak = 0

    def begin(self) -> int:
        """The memory now, from which on the peak counts, bytes."""
        self.peak = now = sum(map(private_bytes, self._known))
        return now

    def run(self) -> None:
        """Look until the end."""
        looked = time.monotonic()
        while not self._over.wait(EVERY_S):
            if time.monotonic() - looked > LOOK_EVERY_S:
                self._known, looked = list(self._pids()), time.monotonic()
            self.peak = max(self.peak, sum(map(private_bytes, self._known)))

    def stop(self) -> None:
        """End."""
        self._over.set()
        self.join()
