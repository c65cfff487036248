"""Two classes of requests: the lower one is refused first and leaves last, and neither class starves."""

import asyncio
import base64

import httpx
import pytest

from deployments.contract.batch import Batch
from deployments.contract.errors import Overloaded
from deployments.contract.options import Options
from deployments.ingress import batching
from deployments.ingress.admission import AdmissionController
from deployments.ingress.grpc.server import GrpcServer
from deployments.ingress.ingress import Ingress
from deployments.ingress.settings import IngressSettings
from tests.door import OBSERVER, Door
from tests.unit.deployments.ingress.grpc.test_server import infer, status
from tests.unit.deployments.ingress.test_ingress import answer

LOWER = Options(priority=2)


def test_the_lower_class_is_refused_where_half_of_the_places_are_taken():
    admission = AdmissionController(IngressSettings(max_in_flight=32))
    with admission.admitted(8, 0), admission.admitted(8, 0, is_lower=True):
        with pytest.raises(Overloaded, match="the lower class is refused beyond 16"):
            admission.check(is_lower=True)
        admission.check(16)
    # A sixteenth is for it, whoever has the other places; and any request where nobody has one.
    with admission.admitted(30, 0), admission.admitted(2, 0, is_lower=True), pytest.raises(Overloaded):
        admission.check(is_lower=True)
    admission.check(32, is_lower=True)


def test_the_usual_class_is_not_refused_for_images_that_it_does_not_wait_for():
    admission = AdmissionController(IngressSettings(max_in_flight=256))
    admission._throughput = type("Drain", (), {"proven_pace": 10.0, "retry_after_s": lambda *_: 1.0})()
    with admission.admitted(100, 0, is_lower=True):
        admission.check(left_s=1)
        with pytest.raises(Overloaded, match="has 1"):
            admission.check(left_s=1, is_lower=True)


class Gated:
    """A graph whose batches end when they are let."""

    def __init__(self):
        self.batches, self._gates = [], []

    async def __call__(self, batch):
        gate = asyncio.Event()
        self.batches.append([image.decode() for image in batch.payload])
        self._gates.append(gate)
        await gate.wait()
        return Batch([answer(image.decode()) for image in batch.payload], batch.items)

    async def began(self, batches):
        """Wait until so many batches have begun."""
        while len(self.batches) < batches:
            await asyncio.sleep(0)

    def end(self):
        """End every batch."""
        for gate in self._gates:
            gate.set()


@pytest.fixture
def graph():
    return Gated()


@pytest.fixture
def ingress(graph):
    return Ingress.of_images(graph, IngressSettings(max_concurrent_batches=1, max_batch_size=4), 5, OBSERVER)


async def sent(ingress, *images, options=LOWER):
    """Send images, each in a request; they wait in the queue when this returns."""
    before = ingress.admission.images
    tasks = [asyncio.ensure_future(ingress.classify([image.encode()], options)) for image in images]
    while ingress.admission.images < before + len(images):
        await asyncio.sleep(0)
    return tasks


async def test_the_lower_class_leaves_alone_when_the_usual_class_has_nothing_to_do(ingress, graph):
    tasks = await sent(ingress, "usual", options=Options())
    await graph.began(1)
    tasks += await sent(ingress, "lower 1", "lower 2")
    tasks += await sent(ingress, "usual 2", "usual 3", options=Options(priority=1))
    for batches in range(1, 5):
        await graph.began(batches)
        graph.end()
    await asyncio.gather(*tasks)
    assert graph.batches == [["usual"], ["usual 2", "usual 3"], ["lower 1"], ["lower 2"]]


async def test_the_lower_class_has_batches_where_the_usual_class_does_not_send(ingress, graph, monkeypatch):
    monkeypatch.setattr(batching, "SENDS_S", 0.0)
    tasks = await sent(ingress, "usual", options=Options())
    await graph.began(1)
    tasks += await sent(ingress, *"abcd")
    await graph.began(2)
    graph.end()
    await asyncio.gather(*tasks)
    assert graph.batches == [["usual"], [*"abcd"]]


async def test_the_lower_class_does_not_starve(ingress, graph):
    tasks = await sent(ingress, "usual", options=Options())
    await graph.began(1)
    tasks += await sent(ingress, "lower")
    # There is always an image of the usual class.
    while ["lower"] not in graph.batches:
        begun = len(graph.batches)
        tasks += await sent(ingress, "usual", options=Options())
        graph.end()
        await graph.began(begun + 1)
    assert sum(map(len, graph.batches)) == batching.NORMAL_PER_LOW + 1
    while not all(task.done() for task in tasks):
        graph.end()
        await asyncio.sleep(0)


IMAGE = b"an image"
BASE64 = base64.b64encode(IMAGE).decode()
TENSOR = {"name": "image", "datatype": "BYTES", "shape": [1], "data": [BASE64]}


def by_header(lower):
    return {"priority": "u=7"} if lower else {}


ASKED = {
    "a query": lambda lower: {"url": f"/classify?priority={1 + lower}", "content": IMAGE},
    "a form": lambda lower: {
        "url": "/classify",
        "files": [("image", ("a", IMAGE))],
        "headers": {"ensemble-options": f"priority={1 + lower}"},
    },
    "a header": lambda lower: {"url": "/classify", "content": IMAGE, "headers": by_header(lower)},
    "a parameter": lambda lower: {
        "url": "/v2/models/ensemble/infer",
        "json": {"inputs": [TENSOR], "parameters": {"priority": 1 + lower}},
    },
    "TensorFlow Serving": lambda lower: {
        "url": "/v1/models/ensemble:predict",
        "json": {"instances": [{"b64": BASE64}]},
        "headers": by_header(lower),
    },
    "Seldon": lambda lower: {
        "url": "/api/v1.0/predictions",
        "json": {"binData": BASE64},
        "headers": by_header(lower),
    },
}


@pytest.fixture(params=[503, 429])
def full(request):
    """A server that has no place for the lower class, and the status of its refusals."""
    door = Door(max_in_flight=32, overload_status=request.param)
    with door.service.ingress.admission.admitted(16, 0, is_lower=True):
        yield door, request.param


@pytest.mark.parametrize("ask", ASKED.values(), ids=ASKED)
async def test_a_request_over_http_has_a_class(full, ask):
    door, status = full
    transport = httpx.ASGITransport(door._http.asgi)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        usual, lower = [await client.post(**ask(is_lower)) for is_lower in (False, True)]
    assert usual.status_code == 200
    assert lower.status_code == status
    assert "lower class" in lower.text
    assert int(lower.headers["retry-after"]) >= 1


@pytest.mark.parametrize(("priority", "code"), [(0, "OK"), (1, "OK"), (2, "RESOURCE_EXHAUSTED")])
async def test_a_call_over_grpc_has_a_class(full, priority, code):
    request = infer(IMAGE)
    request.parameters["priority"].int64_param = priority
    assert (await status(GrpcServer(full[0].service), request))[0].name == code
