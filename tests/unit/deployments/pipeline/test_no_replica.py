"""Members without a replica: a batch that can do without one does not wait for it."""

import asyncio

import numpy as np
import pytest

from deployments.contract.batch import Work
from deployments.contract.errors import NoReplica
from deployments.pipeline.member_client import MAX_LATE, Member, MemberClient, QuorumSettings
from deployments.pipeline.pipeline import Ensemble
from ensemble_features.cascade.flow import Cascade
from ensemble_features.cascade.settings import CascadeSettings
from tests.batches import batch, errors


class Separate:
    """A member behind an edge: without a replica, a batch waits for one, or is told that there is none."""

    def __init__(self, name, scores=(1, 0)):
        self.name, self.scores = name, scores
        self.replica = asyncio.Event()
        self.replica.set()
        self.waiting = 0

    async def __call__(self, batch):
        if not self.replica.is_set():
            if not any(item.waits_for_replica for item in batch.items):
                raise NoReplica("none")
            self.waiting += 1
            await self.replica.wait()
        scores = np.tile(np.array(self.scores, np.float32), (len(batch.payload), 1))
        return Work(f"predict {self.name}", batch).done(scores, lambda _: {"versions": {self.name: 7}})


class Mean:
    """A combiner."""

    async def __call__(self, batch):
        return Work("combine", batch).done(np.nanmean(list(batch.payload.values()), axis=0))


@pytest.fixture(params=["ensemble", "cascade"])
def flow(request):
    """Makes a flow of members, of which a cascade asks all, as none is ever sure."""

    def make(*members, **asking):
        named = {each.name: Member(each, "small") for each in members}
        if request.param == "ensemble":
            return Ensemble(named, Mean(), QuorumSettings(**asking))
        order = {"order": list(named), "exit_at": [1.0] * (len(named) - 1)}
        return Cascade(named, Mean(), QuorumSettings(**asking), CascadeSettings(**order))

    return make


def pixels():
    return batch({"small": np.array([1, 2], np.uint8)})


def missing(batch):
    return [dict(item.missing) for item in batch.items]


async def waits(members):
    """Until a batch, or a call in the background, waits for a replica of each."""
    while not all(member.waiting for member in members):
        await asyncio.sleep(0)


async def test_a_member_that_the_quorum_spares_is_missing_at_once_and_asked_when_it_has_a_replica(flow):
    a, b = Separate("a", (0.5, 0.5)), Separate("b", (0.6, 0.4))
    # Nothing bounds the wait: a batch that waited for the member would wait until the test is ended.
    asked = flow(a, b, quorum=1)
    a.replica.clear()
    for _ in range(3 * MAX_LATE):
        assert missing(await asked(pixels())) == [{"a": "no_replica"}] * 2
    await waits([a])
    assert a.waiting <= MAX_LATE
    a.replica.set()
    while missing(answer := await asked(pixels())) != [{}, {}]:
        await asyncio.sleep(0)
    assert [dict(item.versions) for item in answer.items] == [{"a": 7, "b": 7}] * 2
    assert all(item.waits_for_replica for item in answer.items)


async def test_of_many_batches_at_once_a_few_wait_in_the_background(flow):
    a, b = Separate("a", (0.5, 0.5)), Separate("b", (0.6, 0.4))
    asked = flow(a, b, quorum=1)
    a.replica.clear()
    answers = await asyncio.gather(*(asked(pixels()) for _ in range(MAX_LATE + 3)))
    assert [missing(answer) for answer in answers] == [[{"a": "no_replica"}] * 2] * (MAX_LATE + 3)
    await waits([a])
    assert a.waiting <= MAX_LATE


async def test_a_member_that_the_quorum_needs_is_waited_for(flow):
    members = [Separate(name, (0.5, 0.5)) for name in "abc"]
    asked = flow(*members, quorum=2)
    lost = members[:2]
    for member in lost:
        member.replica.clear()
    call = asyncio.create_task(asked(pixels()))
    await waits(lost)
    assert not call.done()
    lost[1].replica.set()
    assert missing(await call) == [{"a": "no_replica"}] * 2


async def test_without_a_quorum_every_member_is_waited_for(flow):
    a, b = Separate("a", (0.5, 0.5)), Separate("b", (0.6, 0.4))
    asked = flow(a, b)
    a.replica.clear()
    call = asyncio.create_task(asked(pixels()))
    await waits([a])
    a.replica.set()
    answer = await call
    assert (errors(answer), missing(answer)) == ({}, [{}, {}])


async def test_a_member_that_is_late_and_then_without_a_replica_is_named_so():
    a = Separate("a")
    member = MemberClient("a", Member(a, "small"), 0.0, lambda: True)
    a.replica.clear()
    call = member.ask(pixels(), waits=True)
    await waits([a])
    assert member.outcome(call, 0.0).code == "deadline_exceeded"
    assert member.outcome(None, None).code == "deadline_exceeded"
    with pytest.raises(NoReplica):
        await member.ask(pixels())
    assert (member.breaker.is_open, member.outcome(None, None).code) == (True, "no_replica")
