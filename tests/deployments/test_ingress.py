import asyncio
import time

import pytest

from deployments.ingress import Ingress
from deployments.observer import Observer
from graph.batch import Batch, Classification
from graph.config import IngressSettings
from graph.errors import DeadlineExceeded, EnsembleError, InvalidImage, InvalidParameter, Overloaded
from graph.tracing import Tracing

OBSERVER = Observer(Tracing(None, {}))


class Graph:
    """Answers each image with its own bytes as the label; `bad` fails alone; waits `delay` seconds."""

    def __init__(self, delay=0.0):
        self.delay = delay
        self.requests = []

    async def __call__(self, batch):
        self.requests += batch.requests
        await asyncio.sleep(self.delay)
        if b"crash" in batch.payload:
            raise ZeroDivisionError("a secret of the server")
        errors = {i: InvalidImage("bad") for i, image in enumerate(batch.payload) if image == b"bad"}
        batch = batch.fail(errors)
        answers = [Classification(image.decode(), 0, 1.0, (), None, {}, "") for image in batch.payload]
        return Batch(answers, batch.requests, batch.errors)


def ingress(delay=0.0, **settings):
    graph = Graph(delay)
    return Ingress(graph, IngressSettings(**settings), 5, OBSERVER), graph


async def test_answers_and_errors_keep_their_order():
    door, _ = ingress()
    outcomes = await door.classify([b"a", b"bad", b"c"])
    assert [getattr(outcome, "label", outcome) for outcome in outcomes][::2] == ["a", "c"]
    assert isinstance(outcomes[1], InvalidImage)


async def test_a_request_past_its_deadline_is_answered_then():
    door, _ = ingress(delay=5)
    started = time.monotonic()
    [outcome] = await door.classify([b"a"], timeout_ms=50)
    assert isinstance(outcome, DeadlineExceeded)
    assert time.monotonic() - started < 2


async def test_the_deadline_travels():
    door, graph = ingress()
    await door.classify([b"a"], timeout_ms=2000)
    assert 0 < graph.requests[0].deadline - time.time() < 2


async def test_what_exceeds_admission_is_refused_whole_and_at_once():
    door, _ = ingress(delay=0.2, max_in_flight=3)
    admitted = asyncio.create_task(door.classify([b"a", b"b"]))
    await asyncio.sleep(0.05)
    with pytest.raises(Overloaded, match="at most 3"):
        await door.classify([b"c", b"d"])
    assert [outcome.label for outcome in await door.classify([b"e"])] == ["e"]
    assert [outcome.label for outcome in await admitted] == ["a", "b"]
    assert len(await door.classify([b"f", b"g", b"h"])) == 3


async def test_a_caller_that_leaves_frees_its_place():
    door, _ = ingress(delay=5, max_in_flight=1)
    task = asyncio.create_task(door.classify([b"a"]))
    await asyncio.sleep(0.05)
    task.cancel()
    await asyncio.sleep(0)
    [outcome] = await door.classify([b"b"], timeout_ms=50)
    assert isinstance(outcome, DeadlineExceeded)


async def test_a_failing_graph_tells_nothing_of_its_inside():
    door, _ = ingress()
    [outcome] = await door.classify([b"crash"])
    assert type(outcome) is EnsembleError
    assert "secret" not in outcome.message


@pytest.mark.parametrize("options", [{"top_k": 0}, {"top_k": 6}, {"timeout_ms": 0}, {"timeout_ms": 10**8}])
async def test_parameters_out_of_bounds(options):
    door, _ = ingress()
    with pytest.raises(InvalidParameter, match=next(iter(options))):
        await door.classify([b"a"], **options)


async def test_the_number_of_images_is_bounded():
    door, _ = ingress(max_parts=2)
    for count in (0, 3):
        with pytest.raises(InvalidParameter, match="1 to 2 images"):
            await door.classify([b"a"] * count)


async def test_warm_up_sends_a_picture_that_the_transformer_decodes():
    from deployments.transformer import decode, inspect
    from graph.config import TransformerSettings

    seen = []

    async def graph(batch):
        header = inspect(batch.payload[0], TransformerSettings())
        seen.append(decode(batch.payload[0], header, (4, 4), 1.0))
        return Batch([Classification("a", 0, 1.0, (), None, {}, "")], batch.requests)

    await Ingress(graph, IngressSettings(), 5, OBSERVER).warm_up()
    assert seen[0].shape == (4, 4, 3)
    assert seen[0].min() == seen[0].max() == 128


async def test_a_pass_that_hangs_gives_its_place_back():
    door, graph = ingress(delay=3600, max_concurrent_batches=1)
    [outcome] = await door.classify([b"a"], timeout_ms=50)
    assert isinstance(outcome, DeadlineExceeded)
    graph.delay = 0
    [outcome] = await door.classify([b"b"], timeout_ms=5000)
    assert outcome.label == "b"


async def test_a_node_call_that_is_cancelled_is_an_error_and_not_silence():
    async def graph(_):
        raise asyncio.CancelledError

    [outcome] = await asyncio.wait_for(Ingress(graph, IngressSettings(), 5, OBSERVER).classify([b"a"]), 2)
    assert type(outcome) is EnsembleError


async def test_admission_counts_bytes_too():
    door, _ = ingress(delay=0.2, max_in_flight_bytes=1024)
    admitted = asyncio.create_task(door.classify([b"a" * 1000]))
    await asyncio.sleep(0.05)
    with pytest.raises(Overloaded, match="1024 bytes"):
        await door.classify([b"b" * 100])
    assert len(await admitted) == 1
    assert len(await door.classify([b"b" * 1024])) == 1


async def test_a_request_that_arrives_counts_as_an_image_and_its_bytes():
    door, _ = ingress(max_in_flight=1, max_in_flight_bytes=1024)
    async with door.arriving() as arrival:
        with pytest.raises(Overloaded, match="1 images"):
            await door.classify([b"a"])
        arrival.grow(1000)
        with pytest.raises(Overloaded, match="1000 bytes"):
            arrival.grow(100)
    assert len(await door.classify([b"a" * 1024])) == 1


async def test_a_request_that_does_not_arrive_in_its_time_gives_its_place_back():
    door, _ = ingress(max_in_flight=1)

    async def trickle():
        async with door.arriving(timeout_ms=20) as arrival:
            arrival.grow(10)
            await asyncio.sleep(5)

    with pytest.raises(DeadlineExceeded, match="did not arrive"):
        await trickle()
    assert len(await door.classify([b"a"])) == 1


async def test_a_long_deadline_is_no_reason_to_arrive_late():
    door, _ = ingress(timeout_ms=20)

    async def trickle():
        async with door.arriving(timeout_ms=3_600_000):
            await asyncio.sleep(5)

    with pytest.raises(DeadlineExceeded, match="did not arrive"):
        await trickle()


async def test_the_deadline_counts_from_when_the_request_began():
    door, graph = ingress()
    [outcome] = await door.classify([b"a"], timeout_ms=500, began=time.time() - 1)
    assert isinstance(outcome, DeadlineExceeded)
    await door.classify([b"a"], timeout_ms=2000, began=time.time() - 1)
    assert 0 < graph.requests[-1].deadline - time.time() < 1


async def test_answers_go_out_before_spans_and_metrics_are_made():
    order = []

    class Late(Observer):
        def batch(self, passages, start_ns, end_ns, batch):
            assert start_ns < end_ns <= time.time_ns()
            order.append(f"observed {len(passages)}")
            raise ZeroDivisionError("an observer's failure is nobody else's")

    async def ask(name):
        [outcome] = await door.classify([name])
        order.append(outcome.label)

    door = Ingress(Graph(), IngressSettings(), 5, Late(Tracing(None, {})))
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    await asyncio.gather(ask(b"a"), ask(b"b"))
    await asyncio.sleep(0.05)
    assert sorted(order[:2]) == ["a", "b"]
    assert order[2:] == ["observed 2"]
