import numpy as np

from deployments.contract.answer import Answer, Classification
from deployments.contract.batch import Batch
from deployments.contract.caller import Caller
from deployments.contract.errors import InvalidImage
from deployments.contract.item import Item, Vote
from deployments.contract.rollout import CanaryConfig
from graph.flows.rollout import Rollout
from graph.flows.trial import Trial
from tests.batches import batch
from tests.unit.graph.flows.test_trial import Counts


class Graph:
    """Answers 1 for each image; the member `a` says what the image is."""

    def __init__(self):
        self.items = []

    async def __call__(self, batch):
        self.items = batch.items
        items = tuple(
            item if item.error else msg(item, int(image))
            for item, image in zip(batch.items, [*batch.payload, b"0"], strict=False)
        )
        answers = [
            Answer(
                Classification("x", 1, 0.5, top=(), model_versions=item.versions, trace_id=""),
                np.array([0.5, 0.5], np.float32),
            )
            for item in items
            if item.error is None
        ]
        return Batch(answers, items)


def msg(item, index):
    from msgspec.structs import replace

    version = 3 if "a" in item.trials else 2
    return replace(item, votes={"a": Vote(index, 0.5)}, versions={"a": version})


def rollout(share, key="image"):
    trial = Trial("a", CanaryConfig(version=3, share=share, key=key), Counts())
    graph = Graph()
    return Rollout(graph, [trial]), graph, trial


def item(**more):
    return Item(queued_ns=1, **more)


async def test_images_are_marked_and_what_their_version_says_is_compared():
    flow, graph, trial = rollout(1.0)
    await flow(batch([b"1", b"0"], item(), item()))
    assert [each.trials for each in graph.items] == [("a",)] * 2
    assert trial.counts.votes == [("a", "canary", "3", True), ("a", "canary", "3", False)]
    trial.rolled_back = "failures"
    await flow(batch([b"1"], item()))
    assert graph.items[0].trials == ()
    assert trial.counts.votes[-1] == ("a", "stable", "2", True)


async def test_what_warms_up_is_not_tried_and_what_has_failed_neither():
    flow, graph, _ = rollout(1.0)
    await flow(batch([b"1"], Item()))
    assert graph.items[0].trials == ()
    await flow(Batch([], (item(error=InvalidImage("x")),)))
    assert graph.items[0].trials == ()


async def test_who_asks_is_known_to_nobody_further_on():
    flow, graph, _ = rollout(0.5, "header:X-User")
    assert flow.headers == ("x-user",)
    by = Caller(headers={"x-user": "me"})
    await flow(batch([b"1"], item(by=by)))
    assert graph.items[0].by == Caller()


async def test_an_answer_is_given_even_if_it_can_not_be_told_of(caplog):
    flow, _, trial = rollout(1.0)
    trial.voted = None
    assert len((await flow(batch([b"1"], item()))).payload) == 1
    assert "can't be told of" in caplog.text
