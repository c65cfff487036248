"""Requests whose bodies are arriving: how long each may take, and whose gives way when too much arrives at a time."""

import asyncio
from collections import Counter
from typing import Protocol

from deployments.contract import clock
from deployments.contract.caller import Caller
from deployments.contract.errors import DeadlineExceeded, EnsembleError, Overloaded, SlowBody

# How long a body's rate does not count, and how long a body does not give way to newer ones, seconds.
GRACE_S, YOUNG_S = 5.0, 0.25


class ByteLimit(Protocol):
    """What bounds the bytes that arrive: `AdmissionController`."""

    size: int

    def check_size(self, size: int, by: Caller) -> None:
        """Raise Overloaded if these bytes more exceed the limit."""

    def refusal(self, reason: str, by: Caller) -> Overloaded:
        """Make the error of a refused request."""


class Uploads(dict["Upload", None]):
    """The uploads under way, oldest first, as the keys of a dictionary.

    The upload that gives way is of the sender that has most. Among senders that have as much, a newcomer ends its own
    oldest upload, and nobody else's.
    """

    def preempt_one_for(self, newcomer: str) -> bool:
        """End an upload to make place for one of this sender; False if no upload has to give way."""
        counts = Counter(each.sender for each in self)
        [(largest, most)] = counts.most_common(1)
        if most > counts[newcomer] + 1:
            # However young it is: a sender that begins anew all the time has no other ones.
            self._preempt(largest)
            return True
        # Where each sender has one, the oldest goes: slow senders must not keep all others out.
        sender = newcomer if counts[newcomer] else next(iter(self)).sender
        return self._preempt(sender, spares_young=True)

    def preempt_largest(self, newcomer: str, size: int) -> bool:
        """End the oldest upload of the sender with most bytes; False if this sender would have as many."""
        sizes: Counter[str] = Counter()
        for each in self:
            sizes[each.sender] += each.size
        [(largest, most)] = sizes.most_common(1) or [("", 0)]
        return most > sizes[newcomer] + size and self._preempt(largest)

    def _preempt(self, sender: str, *, spares_young: bool = False) -> bool:
        oldest = next(each for each in self if each.sender == sender)
        if spares_young and oldest.is_young:
            return False
        oldest.preempt()
        del self[oldest]
        return True


class Upload:
    """A request whose body is still on its way.

    Attributes:
        began: when it began to arrive, seconds since the epoch.
        size: bytes that have come so far.
        limit: the timeout that ends it.
    """

    def __init__(self, admission: ByteLimit, by: Caller, timeout_s: float, slowest: int) -> None:
        """Set where its bytes count, whose it is, its time, and the least rate in bytes per second."""
        self.began = clock.now()
        self.size = 0
        self._admission, self._by, self._slowest = admission, by, slowest
        self._start = asyncio.get_running_loop().time()
        self._end = self._start + timeout_s
        self._preempted: EnsembleError | None = None
        self.limit = asyncio.timeout_at(self._start + min(GRACE_S, timeout_s))

    def grow(self, size: int, whole: bool = False) -> None:
        """Count more bytes, the last ones if it is `whole`; raises Overloaded if they exceed the limit."""
        if self._preempted is not None:
            raise self._preempted
        self._admission.check_size(size, self._by)
        self._admission.size += size
        self.size += size
        if not whole:
            # To set a timer anew costs more than the rest of this, and most bodies come in one piece.
            self.limit.reschedule(self._due())

    @property
    def sender(self) -> str:
        """Whose it is, as `Caller.sender`."""
        return self._by.sender

    @property
    def is_young(self) -> bool:
        """Whether it has only just begun."""
        return asyncio.get_running_loop().time() < self._start + YOUNG_S

    def preempt(self) -> None:
        """End this upload, in favour of a newer one."""
        # Its own time may be over in this very turn of the loop.
        if not self.limit.expired():
            reason = "too much arrives at a time, and this request is the oldest of the sender with most of it"
            self._preempted = self._admission.refusal(reason, self._by)
            # Another one may take its place and its bytes at once.
            self._admission.size -= self.size
            self.size = 0
            self.limit.reschedule(asyncio.get_running_loop().time())

    @property
    def error(self) -> EnsembleError:
        """The error that the request is answered with if its time is over now."""
        if self._preempted is not None:
            return self._preempted
        if self._due() < self._end:
            return SlowBody(f"the body came at less than {self._slowest} bytes a second; send it faster")
        return DeadlineExceeded("the request's body did not arrive in its time; send it faster")

    def _due(self) -> float:
        """Return the time at which the upload ends unless more of it comes, by the event loop's clock."""
        return min(self._start + GRACE_S + self.size / self._slowest, self._end)
