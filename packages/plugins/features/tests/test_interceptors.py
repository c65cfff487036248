import asyncio

import numpy as np
from msgspec.structs import replace

from deployments.contract.answer import Answer, Classification
from deployments.contract.batch import Batch
from deployments.contract.caller import Caller
from deployments.contract.errors import InvalidImage
from deployments.contract.item import Item, MemberPrediction
from deployments.pipeline.pipeline import Intercepted
from ensemble_features.canary.feature import TrafficSplit, counters
from ensemble_features.canary.settings import CanaryConfig
from ensemble_features.canary.trial import Trial
from ensemble_features.record import PixelTap, ShadowInterceptor, Trials
from packages.plugins.features.tests.shadow.test_shadow import Breaks, Names, over, shadow, waiting
from tests.batches import batch


class Graph:
    """Answers 1 for each image; the member `a` says what the image is, and a shadow may look at it."""

    def __init__(self):
        self.items, self.tap = [], PixelTap(["small"])
        self.remembers = False

    async def members(self, batch):
        items = iter(batch.payload["small"])
        told = (item if item.error else voted(item, int(next(items))) for item in batch.items)
        return Batch(batch.payload, tuple(told))

    async def __call__(self, batch):
        self.items = batch.items
        pixels = Batch({"small": np.array([int(image) for image in batch.payload], np.uint8)}, batch.items)
        items = (await self.members(pixels if self.remembers else await self.tap(pixels))).items
        return Batch([answer(item) for item in items if item.error is None], items)


def voted(item, index):
    return replace(
        item,
        predictions={"a": MemberPrediction(index, 0.5), "b": MemberPrediction(1, 0.5)},
        versions={"a": 3 if "a" in Trials.of(item) else 2},
    )


def answer(item):
    told = Classification("x", 1, 0.5, top=(), model_versions=item.versions, trace_id="")
    return Answer(told, np.array([0.5, 0.5], np.float32))


def rollout(share, key="image"):
    trial = Trial("a", CanaryConfig(version=3, share=share, key=key), counters())
    graph = Graph()
    return Intercepted(graph, [TrafficSplit([trial], [], graph.tap, None)]), graph, trial


def shadowed(node, **more):
    found, graph = shadow(node, **more), Graph()
    return Intercepted(graph, [ShadowInterceptor([found], graph.tap, None)]), graph, found


def item(**more):
    return Item(queued_ns=1, **more)


async def test_images_are_marked_and_what_their_version_says_is_compared():
    flow, graph, trial = rollout(1.0)
    await flow(batch([b"1", b"0"], item(), item()))
    assert [Trials.of(each) for each in graph.items] == [("a",)] * 2
    predictions = trial._counters.predictions.counts
    assert predictions == {("a", "canary", "3", True): 1, ("a", "canary", "3", False): 1}
    assert trial.figures().canary.agreed.share == 0.5
    trial.rolled_back = "failures"
    await flow(batch([b"1"], item()))
    assert Trials.of(graph.items[0]) == ()
    assert predictions["a", "stable", "2", True] == 1


async def test_what_warms_up_is_not_tried_and_what_has_failed_neither():
    flow, graph, _ = rollout(1.0)
    await flow(batch([b"1"], Item()))
    assert Trials.of(graph.items[0]) == ()
    await flow(Batch([], (item(error=InvalidImage("x")),)))
    assert Trials.of(graph.items[0]) == ()


async def test_a_header_decides_by_its_name_in_small_letters_and_of_who_asks_no_other_process_gets_anything():
    flow, graph, trial = rollout(0.5, "header:X-User")
    assert trial.header == "x-user"
    by = Caller(headers={"x-user": "me"})
    await flow(batch([b"1"], item(caller=by._replace(name="mine", client="mine"))))
    # By the key's name a cache may keep entries apart.
    assert graph.items[0].caller.name == "mine"
    assert Batch([], graph.items).outbound().items[0].caller == Caller()


async def test_an_answer_is_given_even_if_it_can_not_be_told_of(caplog):
    flow, _, trial = rollout(1.0)
    trial.predicted = None
    assert len((await flow(batch([b"1"], item()))).payload) == 1
    assert "an interceptor failed" in caplog.text


async def test_a_shadow_gets_what_was_answered_and_has_no_say():
    node = Names()
    flow, graph, found = shadowed(node)
    answered = await flow(batch([b"1", b"0"], *waiting(2)))
    # The answer is there before it is asked.
    assert node.seen == []
    assert [dict(item.versions) for item in answered.items] == [{"a": 2}] * 2
    await over(found)
    assert [pixels for pixels, _ in node.seen] == [[1, 0]]
    told = found.figures().agreed
    assert (told["ensemble"].count, told["a"].count, told["a"].total) == (1, 2, 2)
    assert graph.tap._kept == {}


async def test_a_shadow_that_hangs_or_breaks_changes_nothing():
    for node in (Names(gate=asyncio.Event()), Breaks()):
        flow, _, found = shadowed(node)
        for _ in range(3):
            answered = await flow(batch([b"1"], *waiting(1)))
            assert [len(answered.payload), answered.items[0].missing] == [1, {}]
        assert found.figures().dropped == 2
        found._work._task.cancel()


async def test_what_has_failed_or_was_remembered_is_not_shadowed():
    node = Names()
    flow, graph, found = shadowed(node)
    await flow(Batch([b"1"], (replace(*waiting(1), error=InvalidImage("x")), *waiting(1))))
    graph.remembers = True
    await flow(batch([b"2"], *waiting(1)))
    await over(found)
    assert [pixels for pixels, _ in node.seen] == [[1]]
    assert graph.tap._kept == {}


async def test_a_graph_that_raises_leaves_nothing_behind():
    flow, graph, _ = shadowed(Names())
    with_error = batch([b"not a number"], *waiting(1))
    try:
        await flow(with_error)
    except ValueError:
        assert graph.tap._kept == {}
    else:
        raise AssertionError
