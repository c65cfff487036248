"""A member as the ensemble calls it: it may answer, fail, be late with its answer, or have no replica."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from deployments.contract.batch import Batch
from deployments.contract.errors import DeadlineExceeded, EnsembleError, NoReplica
from deployments.contract.nodes import Node
from deployments.contract.payload import Images, PixelSets, Probabilities
from graph.pipeline.merging import Outcome
from graph.pipeline.quorum import QuorumSettings, patience_s, waits

logger = logging.getLogger("ray.serve")

# Calls to a late member that are left running. Each holds the batch that it carries.
MAX_LATE = 4
# Seconds that a member must have had before it counts as late, where `patience_ms` is not set: an answer that is
# missing after a short deadline does not show that the member is slow.
LEAST_FAIR_S = 1.0
INTERNAL_HINT = "a member failed on this image; the server's log has the cause"

Call = asyncio.Future[Batch[Probabilities]]


@dataclass(frozen=True)
class Member:
    """A member, and the key of the pixels that it takes."""

    node: Node[Images, Probabilities]
    pixels: str


class Members:
    """The members that the ensemble calls, in order, and how many of them must answer."""

    def __init__(self, members: Mapping[str, Member], settings: QuorumSettings) -> None:
        patience_ms = settings.patience_ms
        fair_s = LEAST_FAIR_S if patience_ms is None else patience_ms / 1000
        self.callers = [MemberCall(name, member, fair_s) for name, member in members.items()]
        self.quorum = settings.quorum or len(members)
        self.can_miss = self.quorum < len(members)
        self._patience_ms = patience_ms

    def has_quorum(self) -> bool:
        """Whether the members that are neither late nor failing are enough."""
        return sum(not (each.is_late or each.is_failing) for each in self.callers) >= self.quorum

    def ask(self, caller: MemberCall, batch: Batch[PixelSets]) -> Call:
        """Send a member the batch, which goes on without the member if it has no replica and the others are enough."""
        return caller.ask(batch, self.has_quorum if self.can_miss else None)

    def patience_s(self, batch: Batch[PixelSets], turns: int = 1) -> float | None:
        """How long a member may take, seconds, of so many that are asked in turn; None for as long as the batch."""
        return patience_s(batch, self._patience_ms, turns) if self.can_miss else None

    def waits(self, batch: Batch[PixelSets]) -> list[tuple[float | None, list[int]]]:
        """How long the members may take, seconds, and for which images, by position."""
        return waits(batch, self._patience_ms) if self.can_miss else [(None, list(range(len(batch.items))))]


class MemberCall:
    """Calls a member. While the member is late, batches are not held up: they try it, and go on without it.

    Attributes:
        is_late: whether a call was given up, or found no replica, and none has succeeded since.
        is_failing: whether it failed on every image of the last batch that it answered.
    """

    def __init__(self, name: str, member: Member, fair_s: float) -> None:
        """Set the member, and how many seconds it must have had before it counts as late."""
        self.name = name
        self.is_late = self.is_failing = False
        self._member, self._fair_s = member, fair_s
        # Calls that nobody waits for; how they end shows whether the member is back.
        self._late: set[Call] = set()
        self._tried = 0.0
        # The error of images whose time is over.
        self.unanswered = DeadlineExceeded(f"member {name!r} did not answer in its time")
        self._slow = DeadlineExceeded(f"member {name!r} is late with earlier images")
        # The error of the images that it is left out for.
        self._reason: EnsembleError = self._slow

    def ask(self, batch: Batch[PixelSets], is_spared: Callable[[], bool] | None = None) -> Call:
        """Send it the batch.

        If `is_spared` is given, the call raises NoReplica instead of waiting for a replica, if that says that the batch
        goes on without a member that counts as late.
        """
        self._tried = time.monotonic()
        mine = Batch(batch.payload[self._member.pixels], batch.items)
        return asyncio.ensure_future(self._call(mine) if is_spared is None else self._call_now(mine, is_spared))

    async def _call(self, batch: Batch[Images]) -> Batch[Probabilities]:
        return await self._member.node(batch)

    async def _call_now(self, batch: Batch[Images], is_spared: Callable[[], bool]) -> Batch[Probabilities]:
        hurried = tuple(replace(item, waits_for_replica=False) for item in batch.items)
        try:
            return await self._call(Batch(batch.payload, hurried))
        except NoReplica as err:
            self._set_late(err.with_traceback(None))
            if not is_spared():
                return await self._call(batch)
            if len(self._late) < MAX_LATE:
                # It ends when there is a replica.
                self._follow(asyncio.ensure_future(self._call(batch)))
            raise

    def try_again(self, batch: Batch[PixelSets], every_s: float | None) -> None:
        """Send a late member the batch if it is time to, without waiting: another of its replicas may be healthy."""
        if len(self._late) < MAX_LATE and time.monotonic() >= self._tried + (every_s or 0.0):
            self._follow(self.ask(batch))

    def outcome(self, call: Call | None, waited_s: float | None) -> Outcome:
        """The answer to a call that was waited for `waited_s` seconds, or why there is none; None for no call."""
        if call is None:
            return self._reason
        if not call.done():
            self._give_up(call, self._fair_s - (waited_s or 0.0))
            return self.unanswered
        self.is_failing = not _succeeded(call)
        if not self.is_failing:
            self._set_back()
        return self._result(call)

    def _result(self, call: Call) -> Outcome:
        """What a call that has ended has answered or raised; the log gets what is not for the caller."""
        try:
            return call.result()
        except EnsembleError as err:
            return err.with_traceback(None)
        except asyncio.CancelledError:
            logger.warning("a call to member %r was cancelled", self.name)
        except Exception:
            # The caller gets a code, and the log the cause.
            logger.exception("member %r failed on a batch", self.name)
        return EnsembleError(INTERNAL_HINT)

    def _give_up(self, call: Call, left_s: float) -> None:
        """Wait no longer; the member is late unless it answers in what is left of its fair time."""
        if left_s <= 0:
            self._set_late(self._slow)
        if len(self._late) >= MAX_LATE:
            call.cancel()
            return
        self._follow(call)
        if left_s > 0:
            timer = asyncio.get_running_loop().call_later(left_s, self._set_late, self._slow)
            call.add_done_callback(lambda _: timer.cancel())

    def _set_late(self, reason: EnsembleError) -> None:
        if not self.is_late:
            logger.warning("member %r is left out until it answers: %s", self.name, reason.code)
        self.is_late, self._reason = True, reason

    def _follow(self, call: Call) -> None:
        self._late.add(call)
        call.add_done_callback(self._ended)

    def _ended(self, call: Call) -> None:
        self._late.discard(call)
        if _succeeded(call):
            self._set_back()
        elif not call.cancelled() and (fault := _fault(self._result(call))):
            self._reason = fault

    def _set_back(self) -> None:
        if self.is_late:
            self.is_late = False
            logger.warning("member %r is asked again", self.name)


def _succeeded(call: Call) -> bool:
    """Whether a call that has ended predicted an image.

    That all images failed by themselves, such as by deadlines that had passed, is not the member's fault, but doesn't
    show that it is back either: a later call will.
    """
    return not call.cancelled() and call.exception() is None and bool(call.result().live)


def _fault(outcome: Outcome) -> EnsembleError | None:
    """The error of a member that failed on a batch; None if the callers are to blame, or the time."""
    errors = [outcome] if isinstance(outcome, EnsembleError) else [item.error for item in outcome.items]
    return next((err for err in errors if err and err.is_fault and not isinstance(err, DeadlineExceeded)), None)


async def answered(calls: Sequence[Call], timeout_s: float | None) -> None:
    """Wait until every call is answered or the time is over; a caller that is cancelled cancels the calls."""
    try:
        await asyncio.wait(calls, timeout=timeout_s)
    except asyncio.CancelledError:
        for call in calls:
            call.cancel()
        raise
