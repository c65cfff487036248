"""Requests whose bodies are arriving: how long each may take, and whose gives way when too much arrives at a time."""

import asyncio
from collections import Counter
from dataclasses import dataclass

from deployments.contract.caller import Caller
from deployments.contract.errors import DeadlineExceeded, EnsembleError, SlowBody

# How long a body's rate does not count, and how long a body does not give way to newer ones, seconds.
GRACE_S, YOUNG_S = 5.0, 0.25


@dataclass(eq=False, slots=True)
class Upload:
    """A request whose body is still on its way.

    Attributes:
        by: whose it is.
        began: when it began to arrive, seconds since the epoch.
        start: the same, by the event loop's clock.
        end: when it must have arrived, by the event loop's clock.
        slowest: the least rate, bytes per second.
        limit: the timeout that ends it.
        size: bytes that have come so far.
        preempted: the error that it gets because it gave way to a newer one.
    """

    by: Caller
    began: float
    start: float
    end: float
    slowest: int
    limit: asyncio.Timeout
    size: int = 0
    preempted: EnsembleError | None = None

    @property
    def error(self) -> EnsembleError:
        """The error that the request is answered with if its time is over now."""
        if self.preempted is not None:
            return self.preempted
        if self.due() < self.end:
            return SlowBody(f"the body came at less than {self.slowest} bytes a second; send it faster")
        return DeadlineExceeded("the request's body did not arrive in its time; send it faster")

    def due(self) -> float:
        """Return the time at which the upload ends unless more of it comes, by the event loop's clock."""
        return min(self.start + GRACE_S + self.size / self.slowest, self.end)


class Uploads(dict[Upload, None]):
    """The uploads under way, oldest first, as the keys of a dictionary.

    The upload that gives way is of the sender that has most. Among senders that have as much, a newcomer ends its own
    oldest upload, and nobody else's.
    """

    def giving_way(self, newcomer: str) -> Upload | None:
        """Choose the upload that ends to make place for one of this sender; None if none has to."""
        counts = Counter(each.by.sender for each in self)
        [(largest, most)] = counts.most_common(1)
        if most > counts[newcomer] + 1:
            # However young it is: a sender that begins anew all the time has no other ones.
            return self._oldest(largest)
        # Where each sender has one, the oldest goes: slow senders must not keep all others out.
        oldest = self._oldest(newcomer) if counts[newcomer] else next(iter(self))
        return None if asyncio.get_running_loop().time() < oldest.start + YOUNG_S else oldest

    def giving_way_to_bytes(self, newcomer: str, size: int) -> Upload | None:
        """Choose the oldest upload of the sender with most bytes; None if this sender would have as many."""
        sizes: Counter[str] = Counter()
        for each in self:
            sizes[each.by.sender] += each.size
        [(largest, most)] = sizes.most_common(1) or [("", 0)]
        return self._oldest(largest) if most > sizes[newcomer] + size else None

    def _oldest(self, sender: str) -> Upload:
        return next(each for each in self if each.by.sender == sender)
