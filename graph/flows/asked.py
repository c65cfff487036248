"""A member as the ensemble asks it: what it answers, that it failed, that it is late, or that it has no replica."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from deployments.contract.batch import Batch
from deployments.contract.errors import DeadlineExceeded, EnsembleError, NoReplica
from deployments.contract.nodes import Node
from deployments.contract.payload import Images, PixelSets, Probabilities
from graph.flows.ballots import Outcome

logger = logging.getLogger("ray.serve")

# Calls to a late member that are left to go on. They hold the batches that they carry.
MOST_LATE = 4
INTERNAL_HINT = "a member failed on this image; the server's log has the cause"

Call = asyncio.Future[Batch[Probabilities]]


@dataclass(frozen=True)
class Member:
    """A member, and the key of the pixels that it takes."""

    node: Node[Images, Probabilities]
    pixels: str


class Asked:
    """A member as it is asked. While it is late, batches are not held up by it: they try it, and go on without.

    Attributes:
        is_late: whether none of the calls has succeeded since one was given up, or found no replica.
    """

    def __init__(self, name: str, member: Member, fair_s: float) -> None:
        """Set the member, and how long it must have had before it counts as late, seconds."""
        self.name = name
        self.is_late = False
        self._member, self._fair_s = member, fair_s
        # Calls that nobody waits for, which tell by their end how the member is.
        self._late: set[Call] = set()
        self._tried = 0.0
        self._slow = DeadlineExceeded(f"member {name!r} is late with earlier images")
        # Why it is left out while it is late.
        self._why: EnsembleError = self._slow

    def ask(self, batch: Batch[PixelSets], is_spared: Callable[[], bool] | None = None) -> Call:
        """Send it the batch.

        Args:
            batch: the images.
            is_spared: tells, once this member counts as late, whether the batch goes on without it; None if it never
                does. The call then raises NoReplica where it would wait until a replica is there.
        """
        self._tried = time.monotonic()
        mine = Batch(batch.payload[self._member.pixels], batch.items)
        return asyncio.ensure_future(self._call(mine) if is_spared is None else self._call_now(mine, is_spared))

    async def _call(self, batch: Batch[Images]) -> Batch[Probabilities]:
        return await self._member.node(batch)

    async def _call_now(self, batch: Batch[Images], is_spared: Callable[[], bool]) -> Batch[Probabilities]:
        hurried = tuple(replace(item, waits=False) for item in batch.items)
        try:
            return await self._call(Batch(batch.payload, hurried))
        except NoReplica as err:
            self._set_late(err.with_traceback(None))
            if not is_spared():
                return await self._call(batch)
            if len(self._late) < MOST_LATE:
                # It ends when a replica is there.
                self._follow(asyncio.ensure_future(self._call(batch)))
            raise

    def try_again(self, batch: Batch[PixelSets], every_s: float | None) -> None:
        """Send a late member the batch, if it is time; another of its replicas may be well. Nobody waits for it."""
        if len(self._late) < MOST_LATE and time.monotonic() >= self._tried + (every_s or 0.0):
            self._follow(self.ask(batch))

    def outcome(self, call: Call | None, waited_s: float | None) -> Outcome:
        """What came of a call, which was waited for so long at most, or of none."""
        if call is None:
            return self._why
        if not call.done():
            self._give_up(call, self._fair_s - (waited_s or 0.0))
            return DeadlineExceeded(f"member {self.name!r} did not answer in its time")
        try:
            answer = call.result()
            self._is_back()
            return answer
        except EnsembleError as err:
            return err.with_traceback(None)
        except asyncio.CancelledError:
            logger.warning("a call to member %r was cancelled", self.name)
        except Exception:
            # Nothing of its inside is the caller's to see: the log has it.
            logger.exception("member %r failed on a batch", self.name)
        return EnsembleError(INTERNAL_HINT)

    def _give_up(self, call: Call, left_s: float) -> None:
        """Wait for it no more; the member is late unless it answers in what is left of its fair time."""
        if left_s <= 0:
            self._set_late(self._slow)
        if len(self._late) >= MOST_LATE:
            call.cancel()
            return
        self._follow(call)
        if left_s > 0:
            timer = asyncio.get_running_loop().call_later(left_s, self._set_late, self._slow)
            call.add_done_callback(lambda _: timer.cancel())

    def _set_late(self, why: EnsembleError) -> None:
        if not self.is_late:
            logger.warning("member %r is left out until it answers: %s", self.name, why.code)
        self.is_late, self._why = True, why

    def _follow(self, call: Call) -> None:
        self._late.add(call)
        call.add_done_callback(self._ended)

    def _ended(self, call: Call) -> None:
        self._late.discard(call)
        failed = call.cancelled() or call.exception() is not None
        if not (failed and self._late):
            self._is_back()

    def _is_back(self) -> None:
        if self.is_late:
            self.is_late = False
            logger.warning("member %r is asked again", self.name)


def has_quorum(members: Sequence[Asked], quorum: int) -> bool:
    """Whether the members that are not late are enough."""
    return sum(not member.is_late for member in members) >= quorum
