"""A member as the ensemble calls it: it may answer, fail, be late with its answer, or have no replica."""

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from msgspec.structs import replace
from pydantic import Field

from deployments.contract import clock
from deployments.contract.batch import Batch, made
from deployments.contract.errors import DeadlineExceeded, EnsembleError, NoReplica
from deployments.contract.nodes import Node
from deployments.contract.payload import Deferred, Images, PixelSets, Probabilities
from deployments.contract.sections import Extensible

logger = logging.getLogger("ray.serve")

# Calls to a late member that are left running. Each holds the batch that it carries.
MAX_LATE = 4
# Seconds that a member must have had before it counts as late, where `patience_ms` is not set: an answer that is
# missing after a short deadline does not show that the member is slow.
LEAST_FAIR_S = 1.0
MEMBER_FAILED = "a member failed on this image; the server's log has the cause"

# A member's share of the time that a batch has left, where `patience_ms` is not set; the nodes after it have the rest.
PATIENT_SHARE = 0.8

Call = asyncio.Future[Batch[Probabilities]]
# A member's answer to a batch, or why there is none.
MemberOutcome = Batch[Probabilities] | EnsembleError


class QuorumSettings(Extensible):
    """How the members are called, and how many must answer."""

    at: ClassVar[str] = "ensemble"

    quorum: int | None = Field(None, ge=1, description="members that must answer an image; default: all of them")
    patience_ms: int | None = Field(
        None, ge=1, le=600_000, description="how long a member may take; default: 0.8 of the time that is left"
    )


def member_deadlines(
    batch: Batch[Any], patience_ms: int | None, turns: int = 1
) -> list[tuple[float | None, list[int]]]:
    """Group the images of a batch, by position, by how long a member may take for them, seconds; the shortest first.

    The last ones may take as long as the whole batch, which is None for as long as the members do.

    Args:
        batch: the images.
        patience_ms: the longest that it may take; None for no bound of its own.
        turns: how many members are asked one after the other from now on; they share the time that is left.
    """
    now, found = clock.now(), dict[float, list[int]]()
    longest = math.inf if patience_ms is None else patience_ms / 1000
    for position, item in enumerate(batch.items):
        left = math.inf if item.deadline is None else PATIENT_SHARE / turns * (item.deadline - now)
        found.setdefault(min(left, longest), []).append(position)
    return [(None if wait == math.inf else max(0.0, wait), found[wait]) for wait in sorted(found)]


def patience_s(batch: Batch[Any], patience_ms: int | None, turns: int = 1) -> float | None:
    """Return how long a member may take for the whole batch, seconds; None for as long as the batch itself."""
    return member_deadlines(batch, patience_ms, turns)[-1][0]


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
        self.quorum = settings.quorum or len(members)
        self.can_miss = self.quorum < len(members)
        is_spared = self.has_quorum if self.can_miss else None
        self.clients = [MemberClient(name, member, fair_s, is_spared) for name, member in members.items()]
        self._patience_ms = patience_ms

    def has_quorum(self) -> bool:
        """Check whether the members that are neither late nor failing are enough."""
        return sum(not (each.breaker.is_open or each.is_failing) for each in self.clients) >= self.quorum

    def patience_s(self, batch: Batch[PixelSets], turns: int = 1) -> float | None:
        """Return the patience with one of `turns` members asked in turn, seconds; None for as long as the batch has."""
        return patience_s(batch, self._patience_ms, turns) if self.can_miss else None

    def deadlines(self, batch: Batch[PixelSets]) -> list[tuple[float | None, list[int]]]:
        """Return how long members that can be missed may take, seconds, and for which images, by position."""
        return member_deadlines(batch, self._patience_ms)


class CircuitBreaker:
    """Leaves a member out: it opens when a call was given up or found no replica, and closes when a call succeeds.

    Attributes:
        is_open: whether the member is left out.
        reason: the error of the images that the member is left out for.
    """

    def __init__(self, name: str) -> None:
        self._name, self.is_open = name, False
        self.reason: EnsembleError = DeadlineExceeded(f"member {name!r} is late with earlier images")

    def open(self, reason: EnsembleError) -> None:
        """Leave the member out, for a reason."""
        if not self.is_open:
            logger.warning("member %r is left out until it answers: %s", self._name, reason.code)
        self.is_open, self.reason = True, reason

    def close(self) -> None:
        """Ask the member again."""
        if self.is_open:
            self.is_open = False
            logger.warning("member %r is asked again", self._name)


class MemberClient:
    """Calls a member. While its circuit breaker is open, batches try the member without waiting for it.

    Attributes:
        breaker: says whether the member is left out.
        is_failing: whether it failed on every image of the last batch that it answered.
    """

    def __init__(self, name: str, member: Member, fair_s: float, is_spared: Callable[[], bool] | None = None) -> None:
        """Set the member, and how many seconds it must have had before it counts as late.

        `is_spared` tells whether a batch goes on without the member if the member has no replica; None for never.
        """
        self.name, self.breaker, self.is_failing = name, CircuitBreaker(name), False
        self._member, self._fair_s, self._is_spared = member, fair_s, is_spared
        # Calls that nobody waits for; how they end shows whether the member is back.
        self._late: set[Call] = set()
        self._tried = 0.0
        # The error of images whose time is over.
        self.unanswered = DeadlineExceeded(f"member {name!r} did not answer in its time")
        self._slow = self.breaker.reason

    def ask(self, batch: Batch[PixelSets], waits: bool = False) -> Call:
        """Send the batch to the member. If it has no replica and is spared, the call fails unless the batch `waits`."""
        self._tried = time.monotonic()
        pixels, is_spared = batch.payload[self._member.pixels], self._is_spared
        call = self._member.node if waits or is_spared is None else partial(self._call_now, is_spared)
        if isinstance(pixels, Deferred):
            return asyncio.ensure_future(_call_when_made(call, Batch(pixels, batch.items)))
        return asyncio.ensure_future(call(Batch(pixels, batch.items)))

    async def _call_now(self, is_spared: Callable[[], bool], batch: Batch[Images]) -> Batch[Probabilities]:
        hurried = tuple(replace(item, waits_for_replica=False) for item in batch.items)
        try:
            return await self._member.node(Batch(batch.payload, hurried))
        except NoReplica as err:
            self.breaker.open(err.with_traceback(None))
            if not is_spared():
                return await self._member.node(batch)
            if len(self._late) < MAX_LATE:
                # It ends when there is a replica.
                self._follow(asyncio.ensure_future(self._member.node(batch)))
            raise

    def try_again(self, batch: Batch[PixelSets], every_s: float | None) -> None:
        """Send a late member the batch if it is time to, without waiting: another of its replicas may be healthy."""
        if len(self._late) < MAX_LATE and time.monotonic() >= self._tried + (every_s or 0.0):
            self._follow(self.ask(batch, waits=True))

    def outcome(self, call: Call | None, waited_s: float | None) -> MemberOutcome:
        """Return the answer to a call that was waited for `waited_s` seconds, or its error; None for no call."""
        if call is None:
            return self.breaker.reason
        if not call.done():
            self._give_up(call, self._fair_s - (waited_s or 0.0))
            return self.unanswered
        outcome = self.result(call)
        self.is_failing = isinstance(outcome, EnsembleError) or not len(outcome.payload)
        return outcome

    def result(self, call: Call) -> MemberOutcome:
        """Return the answer or the error of a call that has ended.

        That all images failed by themselves, such as by deadlines that had passed, is not the member's fault, but
        doesn't show that the member is back either: a later call will.
        """
        error = asyncio.CancelledError() if call.cancelled() else call.exception()
        if error is not None:
            return failure(self.name, error)
        answer = call.result()
        if self.breaker.is_open and len(answer.payload):
            self.breaker.close()
        return answer

    def _give_up(self, call: Call, left_s: float) -> None:
        """Wait no longer; the member is late unless it answers in the rest of its fair time."""
        if left_s <= 0:
            self.breaker.open(self._slow)
        if len(self._late) >= MAX_LATE:
            call.cancel()
            return
        self._follow(call)
        if left_s > 0:
            timer = asyncio.get_running_loop().call_later(left_s, self.breaker.open, self._slow)
            call.add_done_callback(lambda _: timer.cancel())

    def _follow(self, call: Call) -> None:
        self._late.add(call)
        call.add_done_callback(self._ended)

    def _ended(self, call: Call) -> None:
        self._late.discard(call)
        if not call.cancelled() and (fault := _fault(self.result(call))):
            self.breaker.reason = fault


def failure(member: str, error: BaseException) -> EnsembleError:
    """Return the error of the images that a member failed on; the log gets a cause that is not for the caller."""
    if isinstance(error, EnsembleError):
        return error.with_traceback(None)
    if isinstance(error, asyncio.CancelledError):
        logger.warning("a call to member %r was cancelled", member)
    else:
        logger.error("member %r failed on a batch", member, exc_info=error)
    return EnsembleError(MEMBER_FAILED)


async def _call_when_made(
    call: Callable[[Batch[Images]], Awaitable[Batch[Probabilities]]], batch: Batch[Images | Deferred]
) -> Batch[Probabilities]:
    return await call(await made(batch))


def _fault(outcome: MemberOutcome) -> EnsembleError | None:
    """Find the error of a member that failed on a batch; None if the callers are to blame, or the time."""
    if isinstance(outcome, Batch) and len(outcome.payload):
        return None
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
