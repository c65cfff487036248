import asyncio
import time

import numpy as np
import pytest
from msgspec.structs import replace

from deployments.contract.answer import Answer, Classification
from deployments.contract.batch import Batch
from deployments.contract.errors import (
    DeadlineExceeded,
    EnsembleError,
    InvalidImage,
    InvalidParameter,
    NotReady,
    Overloaded,
)
from deployments.contract.nodes import Flow
from deployments.contract.options import Options
from deployments.contract.preprocessing import Preprocessing
from deployments.ingress import queue
from deployments.ingress.admission import AdmissionController
from deployments.ingress.ingress import Ingress
from deployments.ingress.pacing import ThroughputEstimator
from deployments.ingress.settings import IngressSettings
from deployments.observe.observer import Observer, Trace, continue_trace
from deployments.transformer.decoding import decode, read_header
from deployments.transformer.transformer import TransformerSettings
from tests import pictures

OBSERVER = Observer()


class Graph:
    """Answers each image with its own bytes as the label; `bad` fails alone; waits `delay` seconds."""

    def __init__(self, delay=0.0):
        self.delay = delay
        self.items = []

    async def __call__(self, batch):
        self.items += batch.items
        await asyncio.sleep(self.delay)
        if b"crash" in batch.payload:
            raise ZeroDivisionError("a secret of the server")
        errors = {i: InvalidImage("bad") for i, image in enumerate(batch.payload) if image == b"bad"}
        batch = batch.fail(errors)
        return Batch([answer(image.decode()) for image in batch.payload], batch.items)


def answer(label):
    classification = Classification(label, 0, 1.0, top=(), model_versions={}, trace_id="0" * 32)
    return Answer(classification, np.ones(5, np.float32) / 5)


def label(outcome):
    return outcome.classification.label


def ingress(delay=0.0, **settings):
    graph = Graph(delay)
    return Ingress.of_images(graph, IngressSettings(**settings), 5, OBSERVER), graph


async def test_answers_and_errors_keep_their_order():
    door, _ = ingress()
    outcomes = await door.classify([b"a", b"bad", b"c"])
    assert [label(outcomes[0]), label(outcomes[2])] == ["a", "c"]
    assert isinstance(outcomes[1], InvalidImage)


async def test_a_call_that_is_not_observed_has_a_trace_of_its_own():
    """Between processes the trace's parent has a length that is fixed."""
    door, graph = ingress()
    await door.classify([b"a"], trace=Trace(""))
    assert len(graph.items[0].trace_parent) == len(continue_trace(None))


async def test_an_image_does_not_wait_for_all_images_of_an_earlier_request(monkeypatch):
    monkeypatch.setattr(queue, "BATCHES_APART_NS", 10**12)
    door, graph = ingress(delay=0.01, max_batch_size=2, max_concurrent_batches=1)
    several = asyncio.create_task(door.classify([b"a"] * 8))
    while not graph.items:
        await asyncio.sleep(0)
    await door.classify([b"b"])
    # Those that had left, and itself.
    assert len(graph.items) == 3
    assert len(await several) == 8


async def test_a_request_past_its_deadline_is_answered_then():
    door, _ = ingress(delay=5)
    started = time.monotonic()
    [outcome] = await door.classify([b"a"], Options(timeout_ms=50))
    assert isinstance(outcome, DeadlineExceeded)
    assert time.monotonic() - started < 2


async def test_the_deadline_travels():
    door, graph = ingress()
    await door.classify([b"a"], Options(timeout_ms=2000))
    assert 0 < graph.items[0].deadline - time.time() < 2


async def test_what_exceeds_admission_is_refused_whole_and_at_once(monkeypatch):
    door, _ = ingress(delay=0.2, max_in_flight=3)
    admitted = asyncio.create_task(door.classify([b"a", b"b"]))
    await asyncio.sleep(0.05)
    # None of the images is looked at.
    with monkeypatch.context() as patch:
        patch.setattr(door.queue, "prepare", None)
        with pytest.raises(Overloaded, match="at most 3"):
            await door.classify([b"c", b"d"])
    assert [label(outcome) for outcome in await door.classify([b"e"])] == ["e"]
    assert [label(outcome) for outcome in await admitted] == ["a", "b"]
    assert len(await door.classify([b"f", b"g", b"h"])) == 3


async def test_a_caller_that_leaves_frees_its_place():
    door, _ = ingress(delay=5, max_in_flight=1)
    task = asyncio.create_task(door.classify([b"a"]))
    await asyncio.sleep(0.05)
    task.cancel()
    await asyncio.sleep(0)
    [outcome] = await door.classify([b"b"], Options(timeout_ms=50))
    assert isinstance(outcome, DeadlineExceeded)


async def test_a_failing_graph_tells_nothing_of_its_inside():
    door, _ = ingress()
    [outcome] = await door.classify([b"crash"])
    assert type(outcome) is EnsembleError
    assert "secret" not in outcome.message


async def test_more_classes_than_there_are_cannot_be_listed():
    door, _ = ingress()
    with pytest.raises(InvalidParameter, match="top_k must be between 1 and 5"):
        await door.classify([b"a"], Options(top_k=6))


@pytest.mark.parametrize("limit", ["max_parts", "max_in_flight"])
async def test_the_number_of_images_is_bounded(limit):
    door, _ = ingress(**{limit: 2})
    for count in (0, 3):
        with pytest.raises(InvalidParameter, match="1 to 2 images"):
            await door.classify([b"a"] * count)


async def test_warm_up_sends_a_picture_that_the_transformer_decodes():
    seen = []

    async def graph(batch):
        header = read_header(batch.payload[0], TransformerSettings())
        seen.extend(decode(batch.payload[0], header, [Preprocessing((4, 4))]).pixels)
        return Batch([answer("a")], batch.items)

    await Ingress.of_images(graph, IngressSettings(), 5, OBSERVER).warm_up()
    assert seen[0].shape == (4, 4, 3)
    assert seen[0].min() == seen[0].max() == 128


@pytest.mark.parametrize(("code", "ready"), [("remote_unavailable", True), ("deadline_exceeded", False)])
async def test_only_a_remote_member_that_is_not_there_is_not_waited_for(code, ready):
    async def graph(batch):
        return Batch([answer("a")], (replace(batch.items[0], missing={"m": code}),))

    door = Ingress.of_images(graph, IngressSettings(), 5, OBSERVER)
    if ready:
        assert await door.warm_up() == {"m": code}
    else:
        with pytest.raises(NotReady, match="'m': 'deadline_exceeded'"):
            await door.warm_up()


async def test_a_pass_that_hangs_gives_its_place_back():
    door, graph = ingress(delay=3600, max_concurrent_batches=1)
    [outcome] = await door.classify([b"a"], Options(timeout_ms=50))
    assert isinstance(outcome, DeadlineExceeded)
    graph.delay = 0
    [outcome] = await door.classify([b"b"], Options(timeout_ms=5000))
    assert label(outcome) == "b"


async def test_a_node_call_that_is_cancelled_is_an_error_and_not_silence():
    async def graph(_):
        raise asyncio.CancelledError

    [outcome] = await asyncio.wait_for(Ingress.of_images(graph, IngressSettings(), 5, OBSERVER).classify([b"a"]), 2)
    assert type(outcome) is EnsembleError


async def test_admission_counts_bytes_too():
    door, _ = ingress(delay=0.2, max_in_flight_bytes=1024, max_request_bytes=1024)
    admitted = asyncio.create_task(door.classify([b"a" * 1000]))
    await asyncio.sleep(0.05)
    with pytest.raises(Overloaded, match="1000 bytes are in flight; at most 1024"):
        await door.classify([b"b" * 100])
    assert len(await admitted) == 1
    assert len(await door.classify([b"b" * 1024])) == 1


async def test_what_arrives_takes_room_for_its_bytes_and_none_of_an_image():
    door, _ = ingress(max_in_flight=1, max_in_flight_bytes=1024, max_request_bytes=1024)
    async with door.admission.arriving() as arrival:
        door.admission.arrived(arrival, 1000)
        with pytest.raises(Overloaded, match="1000 bytes"):
            door.admission.arrived(arrival, 100)
        assert len(await door.classify([b"a"])) == 1
    assert len(await door.classify([b"a" * 1024])) == 1


async def test_nothing_arrives_while_there_is_no_room_for_an_image():
    door, _ = ingress(delay=5, max_in_flight=1)
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(door.classify([b"a"]))
        await asyncio.sleep(0)
        with pytest.raises(Overloaded, match="1 images"):
            async with door.admission.arriving():
                pass
        waiting.cancel()


async def test_a_long_deadline_is_no_reason_to_arrive_late():
    door, _ = ingress(timeout_ms=20)

    async def trickle():
        async with door.admission.arriving(Options(timeout_ms=3_600_000)):
            await asyncio.sleep(5)

    with pytest.raises(DeadlineExceeded, match="did not arrive"):
        await trickle()


async def test_the_deadline_counts_from_when_the_request_began():
    door, graph = ingress()
    [outcome] = await door.classify([b"a"], Options(timeout_ms=500), began=time.time() - 1)
    assert isinstance(outcome, DeadlineExceeded)
    await door.classify([b"a"], Options(timeout_ms=2000), began=time.time() - 1)
    assert 0 < graph.items[-1].deadline - time.time() < 1


async def test_answers_go_out_before_spans_and_metrics_are_made():
    order = []

    class Late(Observer):
        def batch(self, image_traces, start_ns, end_ns, batch):
            assert start_ns < end_ns <= time.time_ns()
            order.append(f"observed {len(image_traces)}")
            raise ZeroDivisionError("an observer's failure is nobody else's")

    async def ask(name):
        [outcome] = await door.classify([name])
        order.append(label(outcome))

    door = Ingress.of_images(Graph(), IngressSettings(), 5, Late())
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    await asyncio.gather(ask(b"a"), ask(b"b"))
    await asyncio.sleep(0.05)
    assert sorted(order[:2]) == ["a", "b"]
    assert order[2:] == ["observed 2"]


async def test_what_can_not_make_its_deadline_is_refused_at_the_door(monkeypatch):
    door, _ = ingress(delay=5)
    monkeypatch.setattr(ThroughputEstimator, "pace", 2.0)
    monkeypatch.setattr(ThroughputEstimator, "proven_pace", 2.0)
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(door.classify([b"a"] * 4))
        await asyncio.sleep(0)
        # To try again helps nobody whose time is over already.
        [late] = await door.classify([b"a"], Options(timeout_ms=500), began=time.time() - 1)
        assert isinstance(late, DeadlineExceeded)
        # Four images at two a second take two seconds.
        with pytest.raises(Overloaded, match=r"4 images are in flight, at 2 a second") as refused:
            await door.classify([b"b"], Options(timeout_ms=1500))
        assert 1.5 <= refused.value.retry_after_s <= 2.5
        assert refused.value.to_dict()["retry_after_ms"] == round(refused.value.retry_after_s * 1000)
        other = group.create_task(door.classify([b"b"], Options(timeout_ms=2500)))
        await asyncio.sleep(0)
        assert not other.done()
        waiting.cancel()
        other.cancel()


class Gate:
    """A graph that holds what is no JPEG until it is opened."""

    def __init__(self):
        self.opened = asyncio.Event()
        self.held = asyncio.Event()

    async def __call__(self, batch):
        if not all(image.startswith(b"\xff\xd8") for image in batch.payload):
            self.held.set()
            await self.opened.wait()
        return Batch([answer("x") for _ in batch.payload], batch.items)


async def test_the_rate_is_that_of_answers_and_not_of_images_whose_time_is_over_or_whose_caller_left(monkeypatch):
    counted = []
    monkeypatch.setattr(AdmissionController, "answered", lambda _, images: counted.append(images))
    door, graph = ingress(delay=5)
    [outcome] = await door.classify([b"a"], Options(timeout_ms=20))
    assert isinstance(outcome, DeadlineExceeded)
    task = asyncio.create_task(door.classify([b"b"]))
    while len(graph.items) < 2:
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert sum(counted) == 0
    door, _ = ingress()
    await door.classify([b"a", b"bad"])
    assert sum(counted) == 2


async def test_a_photograph_does_not_wait_for_what_is_decoded_apart():
    graph = Gate()
    door = Ingress.of_images(graph, IngressSettings(max_concurrent_batches=1), 5, OBSERVER)
    apart = asyncio.create_task(door.classify([pictures.bomb(100)]))
    await graph.held.wait()
    [outcome] = await door.classify([pictures.jpeg()])
    assert label(outcome) == "x"
    # In one request, too, the images go ways of their own; the request waits for all.
    both = asyncio.create_task(door.classify([pictures.jpeg(), pictures.bomb(100)]))
    await door.classify([pictures.jpeg()])
    assert not apart.done()
    assert not both.done()
    graph.opened.set()
    assert [label(outcome) for outcome in await apart + await both] == ["x"] * 3


async def test_pixels_in_flight_are_bounded():
    graph = Gate()
    door = Ingress.of_images(graph, IngressSettings(max_in_flight_pixels=20_000), 5, OBSERVER)
    # More than is admitted, but the only one.
    first = asyncio.create_task(door.classify([pictures.bomb(100)] * 3))
    await graph.held.wait()
    with pytest.raises(Overloaded, match="of 30000 pixels wait to be decoded; at most 20000"):
        await door.classify([pictures.bomb(100)])
    # What declares nothing, or too much by itself, is for the transformer to refuse; photographs are not counted.
    others = asyncio.create_task(door.classify([b"no image", pictures.bomb(20_000)]))
    assert label((await door.classify([pictures.jpeg(480, 640)]))[0]) == "x"
    graph.opened.set()
    await first
    await others
    assert label((await door.classify([pictures.bomb(100)]))[0]) == "x"


async def test_large_images_that_are_decoded_apart_go_alone():
    sizes = []

    async def counting(batch):
        sizes.append(len(batch.items))
        return Batch([answer("x") for _ in batch.items], batch.items)

    door = Ingress.of_images(counting, IngressSettings(max_concurrent_batches=1, max_batch_bytes=2**20), 5, OBSERVER)
    await door.classify([pictures.bomb(2000)] * 3)
    await door.classify([pictures.bomb(100)] * 3)
    assert sizes == [1, 1, 1, 3]


async def test_what_the_graph_knows_is_answered_while_every_pass_is_taken_by_what_it_does_not():
    gate = asyncio.Event()

    class Remembers(Graph):
        async def __call__(self, batch):
            if b"new" in batch.payload:
                await gate.wait()
            return await super().__call__(batch)

    settings = IngressSettings(max_concurrent_batches=1)
    door = Ingress.of_images(Remembers(), settings, 5, OBSERVER)
    door.queue.knows = lambda image, _: image == b"known"
    waits = asyncio.create_task(door.classify([b"new", b"known"]))
    for _ in range(3):
        assert [label(each) for each in await asyncio.wait_for(door.classify([b"known"]), 5)] == ["known"]
    assert not waits.done()
    gate.set()
    assert [label(each) for each in await waits] == ["new", "known"]
    assert (door.queue.waiting, door.admission.images) == (0, 0)


class Parting(Flow):
    """A graph that lets all but the last image of a batch go, and fails on that one when it is reported to."""

    def __init__(self):
        self.reported = asyncio.Event()

    async def parts(self, batch):
        early = batch.split(range(len(batch.items) - 1))
        answers = [answer(image.decode()) for image in early.payload]
        yield range(len(answers)), Batch(answers, early.items)
        await self.reported.wait()
        raise ZeroDivisionError("a secret of the server")


async def test_who_has_an_answer_does_not_wait_for_the_batch_and_keeps_it_when_the_rest_fails():
    graph = Parting()
    door = Ingress.of_images(graph, IngressSettings(max_batch_size=2, max_concurrent_batches=1), 5, OBSERVER)
    early, late = (asyncio.create_task(door.classify([name], Options(timings=True))) for name in (b"a", b"b"))
    [outcome] = await asyncio.wait_for(early, 5)
    assert label(outcome) == "a"
    assert outcome.classification.timings is not None
    assert not late.done()
    graph.reported.set()
    [failed] = await asyncio.wait_for(late, 5)
    assert (failed.code, "secret" in failed.message) == ("internal", False)
    async with asyncio.timeout(5):
        while (counted := door.execution.statistics.reported("ensemble", "1").inference_stats).fail.count == 0:
            await asyncio.sleep(0.01)
    assert (counted.success.count, counted.fail.count) == (1, 1)
    assert counted.success.ns < counted.fail.ns
