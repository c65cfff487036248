import numpy as np

from deployments.contract.batch import Batch, Work
from deployments.contract.errors import InferenceFailed, InvalidImage
from deployments.contract.item import Item
from graph.flows.ensemble import Ensemble, Member
from graph.flows.pipeline import Pipeline
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


class Mean:
    """A combiner that notes what it got."""

    seen = None

    async def __call__(self, batch):
        self.seen = batch
        return Work("combine", batch).done(np.mean(list(batch.payload.values()), axis=0))


def ensemble(*members):
    combiner = Mean()
    return Ensemble({m.name: Member(m, "small") for m in members}, combiner), combiner


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
