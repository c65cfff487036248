"""A request whose body is on its way: its bytes count as they come, and they must come at a least rate."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from deployments.contract.caller import Caller
from deployments.contract.errors import DeadlineExceeded, EnsembleError, SlowBody

if TYPE_CHECKING:
    from deployments.ingress.admission import AdmissionController

# How long a body's rate does not count, and how long a body does not give way to newer ones, seconds.
GRACE_S, YOUNG_S = 5.0, 0.25


class Upload:
    """A request whose body is still on its way.

    Attributes:
        began: when it began to arrive, seconds since the epoch.
        sender: the name of the key, or the address, that it comes from.
        size: what has come so far, bytes.
        limit: the timeout that ends it.
        error: what it is answered if that happens now.
    """

    def __init__(self, capacity: AdmissionController, by: Caller, timeout_s: float, slowest: int) -> None:
        """Set where its bytes count, whose it is, its time, and the least rate in bytes per second."""
        self.began = time.time()
        self.size, self.sender = 0, by.name or by.address
        self._capacity, self._by, self._slowest = capacity, by, slowest
        self._start = asyncio.get_running_loop().time()
        self._end = self._start + timeout_s
        self.error: EnsembleError = DeadlineExceeded("the request's body did not arrive in its time; send it faster")
        self._gives_way = False
        self.limit = asyncio.timeout_at(self._due())

    def grow(self, size: int, whole: bool = False) -> None:
        """Count more bytes, the last ones if it is `whole`; raises Overloaded if they exceed what is admitted."""
        self._capacity.check_size(size, self._by)
        self._capacity.size += size
        self.size += size
        if not whole and not self._gives_way:
            # To set a timer anew costs more than the rest of this, and most bodies come in one piece.
            self.limit.reschedule(self._due())

    @property
    def is_young(self) -> bool:
        """Whether it has only just begun."""
        return asyncio.get_running_loop().time() < self._start + YOUNG_S

    def preempt(self) -> None:
        """End, in favour of a newer one."""
        self._gives_way = True
        # Its own time may be over in this very turn of the loop.
        if not self.limit.expired():
            reason = "too many requests are arriving, of which this one is the oldest"
            self.error = self._capacity.refusal(reason, self._by)
            self.limit.reschedule(asyncio.get_running_loop().time())

    def _due(self) -> float:
        """When it ends unless more of it comes, by the event loop's clock."""
        due = self._start + GRACE_S + self.size / self._slowest
        if due < self._end:
            self.error = SlowBody(f"the body came at less than {self._slowest} bytes a second; send it faster")
        return min(due, self._end)
