import asyncio
import time

import numpy as np
import pytest
from msgspec.structs import replace

from deployments.contract.batch import Batch, Work
from deployments.contract.errors import InferenceFailed, InvalidImage
from deployments.contract.item import Item
from deployments.pipeline.member_client import MAX_LATE, Member, QuorumSettings
from deployments.pipeline.pipeline import Ensemble, Pipeline
from tests.batches import batch, errors, notes


class Says:
    """A member that says so much of every image, and fails on some, by their first pixel."""

    def __init__(self, name, scores, fails=()):
        self.name, self.scores, self.fails = name, scores, fails

    async def __call__(self, batch):
        work = Work(f"predict {self.name}", batch)
        broken = {row: InferenceFailed(self.name) for row, pixel in enumerate(work.payload) if pixel in self.fails}
        scores = np.tile(np.array(self.scores, np.float32), (len(work.payload) - len(broken), 1))
        return work.done(scores, lambda _: {"versions": {self.name: 7}}, errors=broken)


class Hangs(Says):
    """A member that answers once it may."""

    def __init__(self, name, scores):
        super().__init__(name, scores)
        self.gate = asyncio.Event()
        self.asked = self.cancelled = 0

    async def __call__(self, batch):
        self.asked += 1
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return await super().__call__(batch)


class Breaks:
    """A member that raises."""

    def __init__(self, name, error):
        self.name, self.error = name, error

    async def __call__(self, batch):
        raise self.error


class Mean:
    """A combiner that notes what it got."""

    seen = None

    async def __call__(self, batch):
        self.seen = batch
        return Work("combine", batch).done(np.nanmean(list(batch.payload.values()), axis=0))


def ensemble(*members, **asking):
    combiner = Mean()
    settings = QuorumSettings(**asking)
    return Ensemble({m.name: Member(m, "small") for m in members}, combiner, settings), combiner


def missing(batch):
    return [dict(item.missing) for item in batch.items]


def pixels(*values):
    return batch({"small": np.array(values, np.uint8), "large": np.zeros(len(values), np.uint8)})


async def test_every_member_is_asked_and_what_they_say_combined():
    flow, _ = ensemble(Says("a", [0.6, 0.4]), Says("b", [0.2, 0.8]))
    answer = await flow(pixels(1, 2))
    np.testing.assert_allclose(answer.payload, [[0.4, 0.6]] * 2, rtol=1e-6)
    assert [item.versions for item in answer.items] == [{"a": 7, "b": 7}] * 2
    assert [[step.note.node for step in item.steps] for item in answer.items] == [
        ["predict a", "predict b", "combine"]
    ] * 2
    assert len(notes(answer)) == 3


async def test_what_failed_in_one_member_has_failed_and_the_rest_goes_on():
    flow, combiner = ensemble(Says("a", [1, 0], fails=(2,)), Says("b", [0, 1]))
    answer = await flow(pixels(1, 2, 3))
    assert {position: error.message for position, error in errors(answer).items()} == {1: "a"}
    assert answer.live == [0, 2]
    assert {name: len(rows) for name, rows in combiner.seen.payload.items()} == {"a": 2, "b": 2}
    failures = [step.failure for step in answer.items[1].steps]
    assert failures == [("inference_failed", "a"), None]


async def test_where_nothing_is_left_the_combiner_is_not_asked():
    flow, combiner = ensemble(Says("a", [1, 0], fails=(1,)), Says("b", [0, 1], fails=(1,)))
    answer = await flow(pixels(1))
    assert answer.live == []
    assert errors(answer)[0].message == "a"
    assert combiner.seen is None


async def test_with_a_quorum_an_image_lacks_the_member_that_failed_on_it():
    flow, combiner = ensemble(Says("a", [1, 0], fails=(2,)), Says("b", [0, 1]), quorum=1)
    answer = await flow(pixels(1, 2, 3))
    assert errors(answer) == {}
    assert missing(answer) == [{}, {"a": "inference_failed"}, {}]
    np.testing.assert_allclose(answer.payload, [[0.5, 0.5], [0, 1], [0.5, 0.5]])
    assert np.isnan(combiner.seen.payload["a"][1]).all()
    assert [item.versions for item in answer.items] == [{"a": 7, "b": 7}, {"b": 7}, {"a": 7, "b": 7}]


async def test_below_the_quorum_an_image_fails_with_the_first_members_error():
    a, b, c = Says("a", [1, 0], fails=(2, 3)), Says("b", [0, 1], fails=(3,)), Says("c", [0, 1])
    answer = await ensemble(a, b, c, quorum=2)[0](pixels(1, 2, 3))
    assert {position: error.message for position, error in errors(answer).items()} == {2: "a"}
    assert missing(answer) == [{}, {"a": "inference_failed"}, {}]
    assert answer.payload.shape == (2, 2)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InferenceFailed("x"), "inference_failed"),
        (RuntimeError("x"), "internal"),
        (asyncio.CancelledError(), "internal"),
    ],
)
async def test_a_member_that_raises_is_left_out(error, code):
    flow, combiner = ensemble(Breaks("a", error), Says("b", [0, 1]), quorum=1)
    answer = await flow(pixels(1, 2))
    assert missing(answer) == [{"a": code}] * 2
    assert list(combiner.seen.payload) == ["b"]
    np.testing.assert_allclose(answer.payload, [[0, 1]] * 2)


async def test_without_a_quorum_a_member_that_raises_fails_every_image():
    answer = await ensemble(Breaks("a", RuntimeError("secret")), Says("b", [0, 1]))[0](pixels(1, 2))
    assert [error.code for error in errors(answer).values()] == ["internal"] * 2
    assert "secret" not in errors(answer)[0].message


async def test_a_late_member_is_left_out_until_it_is_back():
    late = Hangs("a", [1, 0])
    flow, _ = ensemble(late, Says("b", [0, 1]), quorum=1, patience_ms=20)
    for _ in range(3):
        answer = await flow(pixels(1))
        assert missing(answer) == [{"a": "deadline_exceeded"}]
        np.testing.assert_allclose(answer.payload, [[0, 1]])
    assert late.cancelled == 0
    late.gate.set()
    await asyncio.sleep(0)
    while missing(answer) != [{}]:
        await asyncio.sleep(0)
        answer = await flow(pixels(1))
    np.testing.assert_allclose(answer.payload, [[0.5, 0.5]])


class FailsLate(Hangs):
    """A member that fails on every image, or raises, once it may."""

    def __init__(self, name, error):
        super().__init__(name, [1, 0])
        self.error, self.fails = error, (1,)

    async def __call__(self, batch):
        answer = await super().__call__(batch)
        if self.error is not None and self.fails:
            raise self.error
        return answer


@pytest.mark.parametrize(
    ("error", "code"),
    [(None, "inference_failed"), (InferenceFailed("a"), "inference_failed"), (RuntimeError("secret"), "internal")],
)
async def test_a_late_member_is_left_out_while_its_calls_fail(error, code):
    late = FailsLate("a", error)
    flow, _ = ensemble(late, Says("b", [0, 1]), quorum=1, patience_ms=20)
    caller = flow._members.clients[0]
    await flow(pixels(1))
    late.gate.set()
    while caller._late:
        await asyncio.sleep(0)
    assert caller.breaker.is_open
    # Nobody waits for it, though it hangs again.
    late.gate.clear()
    call = flow.parts(pixels(1))
    _, answer = await anext(call)
    assert missing(answer) == [{"a": code}]
    late.fails = ()
    late.gate.set()
    while missing(answer) != [{}]:
        await asyncio.sleep(0)
        answer = await flow(pixels(1))


async def test_an_answer_to_images_whose_time_was_over_does_not_bring_a_late_member_back():
    late = Hangs("a", [1, 0])
    flow, _ = ensemble(late, Says("b", [0, 1]), quorum=1, patience_ms=1)
    caller = flow._members.clients[0]
    until = time.time() + 0.05
    await flow(replace_items(pixels(1), lambda _: until))
    assert caller.breaker.is_open
    while time.time() <= until:
        await asyncio.sleep(0.01)
    late.gate.set()
    while caller._late:
        await asyncio.sleep(0)
    assert caller.breaker.is_open


@pytest.mark.parametrize("patience_ms", [None, 60_000])
async def test_a_callers_short_deadline_does_not_make_a_member_late_for_others(patience_ms):
    slower = Hangs("a", [1, 0])
    flow, _ = ensemble(slower, Says("b", [0, 1]), quorum=1, patience_ms=patience_ms)
    answer = await flow(replace_items(pixels(1), lambda _: time.time() + 0.015))
    assert missing(answer)[0].keys() <= {"a"}
    assert (slower.asked, flow._members.clients[0].breaker.is_open) == (1, False)
    other = asyncio.create_task(flow(pixels(2)))
    while slower.asked < 2:
        await asyncio.sleep(0)
    slower.gate.set()
    assert missing(await other) == [{}]


async def test_a_member_that_hangs_is_late_though_every_deadline_is_short():
    slower = Hangs("a", [1, 0])
    flow, _ = ensemble(slower, Says("b", [0, 1]), quorum=1, patience_ms=100)
    while not flow._members.clients[0].breaker.is_open:
        await flow(replace_items(pixels(1), lambda _: time.time() + 0.01))
    await asyncio.sleep(0)
    assert slower.asked - slower.cancelled <= MAX_LATE


async def test_a_late_member_is_tried_and_its_calls_are_bounded():
    late = Hangs("a", [1, 0])
    flow, _ = ensemble(late, Says("b", [0, 1]), quorum=1, patience_ms=1)
    for _ in range(20):
        await flow(pixels(1))
        await asyncio.sleep(0.002)
    assert late.asked == MAX_LATE


async def test_one_replica_that_hangs_does_not_take_the_others_with_it():
    class FirstHangs(Says):
        asked = 0

        async def __call__(self, batch):
            self.asked += 1
            if self.asked == 1:
                await asyncio.Event().wait()
            return await super().__call__(batch)

    flow, _ = ensemble(FirstHangs("a", [1, 0]), Says("b", [0, 1]), quorum=1, patience_ms=20)
    answer = await flow(pixels(1))
    assert missing(answer) == [{"a": "deadline_exceeded"}]
    while missing(answer) != [{}]:
        answer = await flow(pixels(1))
        await asyncio.sleep(0)
    np.testing.assert_allclose(answer.payload, [[0.5, 0.5]])


async def test_of_many_batches_at_once_a_few_calls_wait_for_the_late_member():
    late = Hangs("a", [1, 0])
    flow, _ = ensemble(late, Says("b", [0, 1]), quorum=1, patience_ms=20)
    answers = await asyncio.gather(*(flow(pixels(i)) for i in range(MAX_LATE + 2)))
    assert [missing(answer) for answer in answers] == [[{"a": "deadline_exceeded"}]] * (MAX_LATE + 2)
    await asyncio.sleep(0)
    assert (late.asked, late.cancelled) == (MAX_LATE + 2, 2)


async def test_where_too_few_would_answer_the_late_are_asked_again():
    a, b = Hangs("a", [1, 0]), Hangs("b", [0, 1])
    flow, _ = ensemble(a, b, Says("c", [0, 1]), quorum=2, patience_ms=20)
    answer = await flow(pixels(1))
    assert errors(answer)[0].code == "deadline_exceeded"
    await flow(pixels(1))
    assert (a.asked, b.asked) == (2, 2)
    b.gate.set()
    answer = await flow(pixels(1))
    assert missing(answer) == [{"a": "deadline_exceeded"}]


async def test_a_late_member_is_waited_for_while_another_fails_on_everything():
    a, b = Hangs("a", [1, 0]), Says("b", [0, 1], fails=(1,))
    flow, _ = ensemble(a, b, Says("c", [0, 1]), quorum=2, patience_ms=20)
    assert missing(await flow(pixels(2))) == [{"a": "deadline_exceeded"}]
    assert errors(await flow(pixels(1)))[0].code == "deadline_exceeded"
    # Of a and b, which were the quorum's hope, one fails: the other is asked again.
    a.gate.set()
    assert missing(await flow(pixels(1))) == [{"b": "inference_failed"}]


async def test_an_image_with_little_time_does_not_wait_for_those_with_much():
    slower = Hangs("a", [1, 0])
    flow, _ = ensemble(slower, Says("b", [0, 1]), quorum=1)
    now, left = time.time(), []

    async def take():
        async for positions, part in flow.parts(replace_items(pixels(1, 2, 3), lambda i: now + (600, 0.02, 600)[i])):
            left.append((list(positions), part))

    passing = asyncio.create_task(take())
    async with asyncio.timeout(5):
        while not left:
            await asyncio.sleep(0.001)
    [(positions, part)] = left
    assert (positions, missing(part)) == ([1], [{"a": "deadline_exceeded"}])
    assert not passing.done()
    slower.gate.set()
    await passing
    assert left[1][0] == [0, 2]
    assert missing(left[1][1]) == [{}, {}]
    np.testing.assert_allclose(left[1][1].payload, [[0.5, 0.5]] * 2)
    assert slower.asked == 1


async def test_patience_ends_before_the_deadline(monkeypatch):
    # A small share of what is left, so that a machine that stands still for a second is not too slow for the test.
    monkeypatch.setattr("deployments.pipeline.member_client.PATIENT_SHARE", 0.01)
    flow, _ = ensemble(Hangs("a", [1, 0]), Says("b", [0, 1]), quorum=1, patience_ms=60_000)
    answer = await flow(replace_items(pixels(1, 2), lambda i: time.time() + 10 * (i + 1)))
    # The second image's time was not over.
    assert answer.items[1].error is None
    assert missing(answer)[1] == {"a": "deadline_exceeded"}


async def test_who_asks_no_more_is_worked_for_no_more():
    late = Hangs("a", [1, 0])
    flow, _ = ensemble(late, Says("b", [0, 1]), quorum=1)
    call = asyncio.create_task(flow(pixels(1)))
    while not late.asked:
        await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await asyncio.sleep(0)
    assert late.cancelled == 1


async def test_a_batch_that_ends_between_two_parts_leaves_no_call_behind():
    a, hangs = Says("a", [0.5, 0.5]), Hangs("b", [0.5, 0.5])
    flow, _ = ensemble(a, hangs, quorum=1)
    now = time.time()
    parts = flow.parts(replace_items(pixels(1, 2), lambda i: now + (0.01, 600)[i]))
    assert (await anext(parts))[0] == [0]
    await parts.aclose()
    await asyncio.sleep(0)
    assert (hangs.asked, hangs.cancelled) == (1, 1)


def replace_items(asked, deadline):
    items = tuple(replace(item, deadline=deadline(i)) for i, item in enumerate(asked.items))
    return Batch(asked.payload, items)


async def test_a_pipeline_ends_where_no_image_is_left():
    asked = []

    def node(name, fails=False):
        async def work(batch):
            asked.append(name)
            done = Work(name, batch)
            broken = dict.fromkeys(range(len(batch.payload)), InvalidImage("no")) if fails else {}
            return done.done([] if fails else batch.payload, errors=broken)

        return work

    answer = await Pipeline(node("one"), node("two", fails=True), node("three"))(Batch(["x"], (Item(),)))
    assert asked == ["one", "two"]
    assert answer.payload == []
    assert isinstance(errors(answer)[0], InvalidImage)
