import asyncio

import pytest
from msgspec.structs import replace

from deployments.contract.caller import Caller
from deployments.contract.errors import AlreadyLabelled, UnknownLabel, UnknownRequest
from deployments.contract.nodes import Flow
from deployments.pipeline.pipeline import Intercepted
from ensemble_features.feedback.store import MAX_ID, FeedbackSettings, FeedbackStore
from ensemble_features.record import Record, ShadowInterceptor
from ensemble_features.shadow.flow import Pairs
from packages.plugins.features.tests.shadow.test_shadow import Names, over, shadow, waiting
from packages.plugins.features.tests.test_interceptors import Graph
from tests.batches import batch
from tests.door import NO_FEEDBACK
from tests.unit.deployments.ingress.clock import Clock


def book(clock=None, **settings):
    return FeedbackStore(FeedbackSettings(**settings), ("cat", "dog", "frog"), clock or Clock())


def seen(**more):
    return Record(1, {"a": 1, "b": 2}, **more)


def test_a_label_tells_who_was_right():
    found = book()
    record = seen(versions={"a": "3"}, last="b")
    record.when_labelled(lambda label: record.judge("shadow", "s", "", label == 2))
    found.remember("r", 0, record)
    found.take("r", "dog")
    judged = [
        ("ensemble", "", "", True),
        ("member", "a", "", True),
        ("version", "a", "3", True),
        ("member", "b", "", False),
        ("exit", "b", "", True),
        ("shadow", "s", "", False),
    ]
    assert found._judged.counts == dict.fromkeys(judged, 1)
    told = found.figures()
    assert (told.remembered, told.labels) == (1, {"accepted": 1})
    # Of one image: 1 / (1 + 1.96 ** 2).
    assert (told.ensemble.share, round(told.ensemble.low, 3), told.ensemble.high) == (1.0, 0.207, 1.0)
    assert (told.members["b"].count, told.versions["a"]["3"].count, told.exits["b"].count) == (0, 1, 1)
    assert (told.shadows["s"].count, told.shadows["s"].total) == (0, 1)


def test_an_index_is_a_label_and_every_image_of_a_request_has_its_own():
    found = book()
    for place in (0, 1):
        found.remember("r", place, seen())
    found.take("r", 1, 0)
    found.take("r", 0, 1)
    assert (found.figures().ensemble.count, found.figures().ensemble.total) == (1, 2)


def test_what_is_wrong_with_a_label_is_told_apart_and_counted():
    found = book()
    found.remember("r", 0, seen())
    for label in ("bird", 3, -1, "1"):
        with pytest.raises(UnknownLabel, match="is no class; there are 3"):
            found.take("r", label)
    for request, place in (("q", 0), ("r", 1)):
        with pytest.raises(UnknownRequest):
            found.take(request, "cat", place)
    found.take("r", "cat")
    with pytest.raises(AlreadyLabelled):
        found.take("r", "dog")
    assert found.figures().labels == {"unknown_label": 4, "unknown_request": 2, "accepted": 1, "already_labelled": 1}
    assert found.figures().ensemble.total == 1


def test_answers_are_forgotten_after_their_time_and_when_there_are_too_many():
    clock = Clock()
    found = book(clock, max_requests=2, ttl_s=10)
    for number in range(3):
        found.remember(str(number), 0, seen())
    with pytest.raises(UnknownRequest):
        found.take("0", "cat")
    clock.now += 9
    found.remember("3", 0, seen())
    clock.now += 2
    found.take("3", "cat")
    with pytest.raises(UnknownRequest, match="too old"):
        found.take("2", "cat")
    assert found.figures().remembered == 1


def test_a_key_forgets_its_own_answers_and_not_those_of_another_key():
    found = book(max_requests=10)
    for number in range(3):
        found.remember(str(number), 0, seen(), "quiet")
    for number in range(1000):
        found.remember(str(number), 0, seen(), "busy")
    assert [found.remembers(str(number), 0, "quiet") for number in range(3)] == [True] * 3
    assert [number for number in range(1000) if found.remembers(str(number), 0, "busy")] == list(range(993, 1000))
    # A key that has come later gets its share, too.
    for number in range(1000):
        found.remember(str(number), 0, seen(), "late")
    assert found.figures().remembered == 10
    assert sum(found.remembers(str(number), 0, "late") for number in range(1000)) == 4
    assert found.remembers("2", 0, "quiet")


def test_a_request_that_came_again_is_known_by_its_last_answer():
    found = book()
    found.remember("r", 0, seen())
    found.take("r", "cat")
    found.remember("r", 0, seen())
    found.take("r", "dog")
    assert found.figures().ensemble.total == 2


def test_an_id_of_any_length_is_not_remembered():
    found = book()
    found.remember("r" * (MAX_ID + 1), 0, seen())
    assert found.figures().remembered == 0


@pytest.mark.parametrize("label_first", [True, False])
async def test_a_shadow_is_judged_whether_it_or_the_label_comes_first(label_first):
    gate, found, graph = asyncio.Event(), book(), Graph()
    tried = shadow(Names(gate=gate))
    flow = Intercepted(graph, [ShadowInterceptor([tried], graph.tap, None), found])
    by = Caller(headers={"x-request-id": "mine"})
    await flow(batch([b"2"], *(replace(item, caller=by) for item in waiting(1))))
    if not label_first:
        gate.set()
        await over(tried)
    found.take("mine", "frog")
    gate.set()
    await over(tried)
    told = found.figures()
    assert (told.shadows["s"].count, told.ensemble.count) == (1, 0)
    assert tried.figures().labelled == {"ensemble": Pairs(0, 1, 0, 0), "a": Pairs(1, 0, 0, 0)}


async def test_a_request_is_known_by_its_own_id_or_by_its_trace():
    found, graph = book(), Graph()
    flow = Intercepted(graph, [found])
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    sent = [
        replace(*waiting(1), caller=Caller(headers={"request_id": "grpc"})),
        replace(*waiting(1), trace_parent=trace),
        replace(*waiting(1), trace_parent=trace, position=1),
    ]
    await flow(batch([b"1"] * 3, *sent))
    found.take("grpc", "dog")
    found.take("0af7651916cd43dd8448eb211c80319c", "dog")
    found.take("0af7651916cd43dd8448eb211c80319c", "cat", 1)
    assert (found.figures().ensemble.count, found.figures().ensemble.total) == (2, 3)


async def test_where_no_labels_are_taken_that_is_told():
    with pytest.raises(UnknownRequest, match="configure `feedback`"):
        await NO_FEEDBACK.feedback("r", "cat", 0, "")


async def test_an_answer_that_leaves_before_others_is_remembered_and_copied_like_them():
    class Parts(Graph, Flow):
        async def parts(self, batch):
            for position in reversed(range(len(batch.items))):
                yield [position], await self(batch.split([position]))

    graph, found, node = Parts(), book(), Names()
    flow = Intercepted(graph, [ShadowInterceptor([tried := shadow(node)], graph.tap, None), found])
    sent, left = [replace(item, position=place) for place, item in enumerate(waiting(2))], []
    async for positions, _ in flow.parts(batch([b"1", b"2"], *sent)):
        left.append(list(positions))
        # Its label may come as soon as it is answered.
        assert found.figures().remembered == len(left)
        await asyncio.sleep(0)
        assert node.seen == []
    await over(tried)
    assert left == [[1], [0]]
    assert ([pixels for pixels, _ in node.seen], graph.tap._kept) == ([[1, 2]], {})


async def test_what_was_answered_before_the_rest_failed_is_compared_nevertheless():
    class Fails(Graph, Flow):
        async def parts(self, batch):
            yield [0], await self(batch.split([0]))
            raise ZeroDivisionError

    graph, node = Fails(), Names()
    flow = Intercepted(graph, [ShadowInterceptor([tried := shadow(node)], graph.tap, None)])
    with pytest.raises(ZeroDivisionError):
        await flow(batch([b"1", b"2"], *waiting(2)))
    await over(tried)
    assert ([pixels for pixels, _ in node.seen], graph.tap._kept) == ([[1]], {})


async def test_the_same_id_of_another_keys_request_is_another_request():
    found, graph = book(), Graph()
    flow = Intercepted(graph, [found])
    for key in ("a", "b", ""):
        by = Caller(headers={"x-request-id": "mine"}, name=key)
        await flow(batch([b"1"], *(replace(item, caller=by) for item in waiting(1))))
    assert found.figures().remembered == 3
    with pytest.raises(UnknownRequest):
        found.take("mine", "dog", 0, "c")
    for key in ("a", "b", ""):
        assert found.remembers("mine", 0, key)
        found.take("mine", "dog", 0, key)
    assert found.figures().labels == {"unknown_request": 1, "accepted": 3}
