import asyncio
import time

import numpy as np
import pytest

from deployments.contract.batch import Work
from deployments.contract.errors import DeadlineExceeded, InferenceFailed, InvalidImage, RemoteUnavailable
from deployments.contract.item import Item
from deployments.pipeline.member_client import Member, QuorumSettings
from deployments.pipeline.pipeline import Ensemble
from ensemble_features.canary.feature import counters
from ensemble_features.canary.flow import Canary
from ensemble_features.canary.settings import CanaryConfig
from ensemble_features.canary.trial import Trial
from ensemble_features.record import Trials
from tests.batches import batch, errors, notes
from tests.unit.deployments.pipeline.test_ensemble import Mean
from tests.unit.deployments.pipeline.test_no_replica import Separate, missing
from tests.unit.deployments.pipeline.test_no_replica import pixels as images


class Says:
    """A version that says so much of every image, and fails on some, by their pixel."""

    def __init__(self, name, version, score, fails=()):
        self.name, self.version, self.score, self.fails = name, version, score, fails
        self.seen = []

    async def __call__(self, batch):
        self.seen.append(batch.payload.tolist())
        work = Work(f"predict {self.name}", batch)
        broken = {row: InferenceFailed(self.name) for row, pixel in enumerate(work.payload) if pixel in self.fails}
        scores = np.full((len(work.payload) - len(broken), 2), self.score, np.float32)
        return work.done(scores, lambda _: {"versions": {self.name: self.version}}, errors=broken)


class Waits(Says):
    """A version that answers once it may."""

    def __init__(self, *args):
        super().__init__(*args)
        self.gate, self.called, self.cancelled = asyncio.Event(), asyncio.Event(), 0

    async def __call__(self, batch):
        self.called.set()
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return await super().__call__(batch)


class Breaks:
    """A version that raises."""

    def __init__(self, error):
        self.error = error

    async def __call__(self, batch):
        raise self.error


def stable(**more):
    return Says("a", 1, 0.1, **more)


def other(**more):
    return Says("a-canary", 2, 0.9, **more)


def canary(first, second, patience_ms=None, **more):
    return Canary(first, second, Trial("a", CanaryConfig(version=2, share=0.5, **more), counters()), patience_ms)


def pixels(values, tried, **more):
    items = [Item(**more).with_note(Trials(("a",) if value in tried else ())) for value in values]
    return batch(np.array(values, np.uint8), *items)


def counted(flow, role):
    """The images that a version was asked about, and those of them that it alone failed on."""
    version = getattr(flow._trial.figures(), role)
    return version.images, version.failed


def versions(answer):
    return [dict(item.versions) for item in answer.items]


async def test_each_version_is_asked_its_own_images_and_they_come_back_in_order():
    first, second = stable(), other()
    flow = canary(first, second)
    answer = await flow(pixels([1, 2, 3, 4], {2, 4}))
    assert (first.seen, second.seen) == ([[1, 3]], [[2, 4]])
    np.testing.assert_allclose(answer.payload[:, 0], [0.1, 0.9, 0.1, 0.9], rtol=1e-6)
    assert versions(answer) == [{"a": 1}, {"a": 2}] * 2
    assert [Trials.of(item) for item in answer.items] == [(), ("a",)] * 2
    assert (counted(flow, "canary"), counted(flow, "stable")) == ((2, 0), (2, 0))


async def test_where_nothing_or_everything_is_tried_one_version_is_asked():
    first, second = stable(), other()
    await canary(first, second)(pixels([1, 2], set()))
    await canary(first, second)(pixels([3, 4], {3, 4}))
    assert (first.seen, second.seen) == ([[1, 2]], [[3, 4]])


async def test_what_the_canary_fails_on_the_stable_version_answers():
    first, second = stable(), other(fails={2})
    flow = canary(first, second)
    answer = await flow(pixels([1, 2, 4], {2, 4}))
    assert errors(answer) == {}
    assert versions(answer) == [{"a": 1}, {"a": 1}, {"a": 2}]
    assert [Trials.of(item) for item in answer.items] == [(), (), ("a",)]
    assert counted(flow, "canary") == (2, 1)
    # A trace shows that both were asked.
    assert [step.note.node for step in answer.items[1].steps] == ["predict a-canary", "predict a"]


async def test_what_neither_can_answer_does_not_speak_against_the_canary():
    flow = canary(stable(fails={2}), other(fails={2}))
    answer = await flow(pixels([1, 2], {2}))
    assert list(errors(answer)) == [1]
    assert counted(flow, "canary") == (1, 0)


async def test_what_the_stable_version_fails_on_too_is_no_failure_of_a_canary_that_raises():
    flow = canary(stable(fails={2}), Breaks(ConnectionError("x")))
    answer = await flow(pixels([2, 4], {2, 4}))
    assert list(errors(answer)) == [0]
    assert counted(flow, "canary") == (2, 1)


async def test_a_callers_short_deadline_does_not_speak_against_the_canary(monkeypatch):
    # Small shares of much time, so that a machine that stands still for a second is not too slow for the test.
    monkeypatch.setattr("ensemble_features.canary.flow.PATIENT_SHARE", 0.001)
    second = Waits("a-canary", 2, 0.9)
    flow = canary(stable(), second, patience_ms=600_000_000, least=1, max_failures=0.01)
    answer = await flow(pixels([2, 4], {2, 4}, deadline=time.time() + 30))
    assert versions(answer) == [{"a": 1}] * 2
    assert (counted(flow, "canary"), second.cancelled) == ((0, 0), 0)
    # The call goes on, and counts once it has ended.
    second.gate.set()
    while flow._watched.is_busy:
        await asyncio.sleep(0)
    assert counted(flow, "canary") == (2, 0)
    assert flow._trial.rolled_back == ""


async def test_a_canary_that_hangs_is_found_out_by_callers_with_short_deadlines_alone(monkeypatch):
    monkeypatch.setattr("ensemble_features.canary.flow.PATIENT_SHARE", 0.001)
    second = Waits("a-canary", 2, 0.9)
    flow = canary(stable(), second, patience_ms=200_000)
    await flow(pixels([2], {2}, deadline=time.time() + 30))
    # One call at a time is left to go on.
    await flow(pixels([2], {2}, deadline=time.time() + 30))
    while flow._watched.is_busy:
        await asyncio.sleep(0.001)
    assert counted(flow, "canary") == (1, 1)
    await asyncio.sleep(0)
    assert second.cancelled == 2


async def test_a_canary_that_gives_up_at_its_images_deadline_is_found_out(monkeypatch):
    monkeypatch.setattr("ensemble_features.canary.flow.PATIENT_SHARE", 0.001)
    given = []

    async def remote(batch):
        given.extend(item.deadline for item in batch.items)
        await asyncio.Event().wait()

    flow = canary(stable(), remote, patience_ms=200_000)
    answer = await flow(pixels([2], {2}, deadline=time.time() + 30))
    while flow._watched.is_busy:
        await asyncio.sleep(0.001)
    assert versions(answer) == [{"a": 1}]
    assert (given, counted(flow, "canary")) == ([None], (1, 1))


async def test_a_canary_that_gives_up_by_itself_is_found_out_by_callers_with_short_deadlines_alone(monkeypatch):
    monkeypatch.setattr("ensemble_features.canary.flow.PATIENT_SHARE", 0.001)
    gives_up = asyncio.Event()

    async def remote(batch):
        await gives_up.wait()
        return batch.fail(dict.fromkeys(range(len(batch.items)), DeadlineExceeded("timeout_ms")))

    flow = canary(stable(), remote, patience_ms=600_000_000)
    answer = await flow(pixels([2], {2}, deadline=time.time() + 30))
    gives_up.set()
    while flow._watched.is_busy:
        await asyncio.sleep(0.001)
    assert versions(answer) == [{"a": 1}]
    assert counted(flow, "canary") == (1, 1)


async def test_a_short_deadline_does_not_cut_off_the_canarys_other_images():
    second = Waits("a-canary", 2, 0.9)
    flow = canary(stable(), second, patience_ms=600_000)
    hurried, patient = pixels([2], {2}, deadline=time.time() + 0.01), pixels([4], {4}, deadline=time.time() + 600)
    call = asyncio.ensure_future(flow(batch(np.array([2, 4], np.uint8), *hurried.items, *patient.items)))
    await second.called.wait()
    await asyncio.sleep(0.02)
    second.gate.set()
    assert versions(await call)[1] == {"a": 2}


@pytest.mark.parametrize("error", [RemoteUnavailable("x"), ConnectionError("x"), asyncio.CancelledError()])
async def test_a_canary_that_raises_costs_nothing(error):
    first = stable()
    flow = canary(first, Breaks(error))
    answer = await flow(pixels([1, 2], {2}))
    assert versions(answer) == [{"a": 1}] * 2
    assert counted(flow, "canary") == (1, 1)


async def test_a_canary_that_hangs_is_given_up_while_there_is_time_for_the_stable_version():
    second = Waits("a-canary", 2, 0.9)
    flow = canary(stable(), second, patience_ms=40)
    answer = await flow(pixels([1, 2], {2}, deadline=time.time() + 60))
    assert versions(answer) == [{"a": 1}] * 2
    assert second.cancelled == 1


async def test_one_that_hangs_is_given_up_soon_once_it_is_known_how_long_the_other_version_takes():
    second = Waits("a-canary", 2, 0.9)
    flow = canary(stable(), second, least=2)
    await flow(pixels([1, 2], set()))
    async with asyncio.timeout(10):
        answer = await flow(pixels([1, 2], {2}, deadline=time.time() + 600))
    assert versions(answer) == [{"a": 1}] * 2
    assert counted(flow, "canary") == (1, 1)


async def test_within_a_quorum_a_hanging_canary_does_not_make_its_member_late():
    flow = canary(stable(), Waits("a-canary", 2, 0.9), patience_ms=200)
    sure = Says("b", 7, 0.5)
    asking = QuorumSettings(quorum=1, patience_ms=200)
    ensemble = Ensemble({"a": Member(flow, "small"), "b": Member(sure, "small")}, Mean(), asking)
    items = pixels([2], {2}).items
    answer = await ensemble(batch({"small": np.array([2], np.uint8)}, *items))
    assert (versions(answer), answer.items[0].missing) == ([{"a": 1, "b": 7}], {})
    # Whose answer it is goes with the item through the ensemble.
    assert Trials.of(answer.items[0]) == ()


async def test_a_stable_version_that_raises_is_what_it_is_without_a_canary():
    second = Waits("a-canary", 2, 0.9)
    with pytest.raises(ConnectionError):
        await canary(Breaks(ConnectionError("x")), second)(pixels([1, 2], {2}))
    await asyncio.sleep(0)
    assert second.cancelled == second.called.is_set()


async def test_leaving_cancels_the_canary():
    second = Waits("a-canary", 2, 0.9)
    call = asyncio.ensure_future(canary(stable(), second)(pixels([1, 2], {2})))
    await second.called.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert second.cancelled == 1


async def test_an_image_that_has_failed_before_keeps_its_error():
    first = stable()
    items = (*(item.with_note(Trials(("a",))) for item in (Item(error=InvalidImage("x")), Item())),)
    answer = await canary(first, other())(batch(np.array([5], np.uint8), *items))
    assert list(errors(answer)) == [0]
    assert (first.seen, versions(answer)[1]) == ([], {"a": 2})
    assert [note.node for note in notes(answer)] == ["predict a-canary"]


async def test_a_member_that_is_tried_in_another_version_is_missing_at_once():
    stable, other, b = Separate("a"), Separate("a canary"), Separate("b")
    canary = Canary(stable, other, Trial("a", CanaryConfig(version=2, share=0.5), None))
    canary.name = "a"
    asked = Ensemble({"a": Member(canary, "small"), "b": Member(b, "small")}, Mean(), QuorumSettings(quorum=1))
    stable.replica.clear()
    assert missing(await asked(images())) == [{"a": "no_replica"}] * 2
