"""The door over gRPC without a server."""

import asyncio
from dataclasses import replace
from unittest.mock import Mock

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from deployments.ingress import protocol
from deployments.ingress.access import Access
from deployments.ingress.grpc.server import MOST_HELD, GrpcServer
from deployments.ingress.pacing import LEAST_PACE, RejectionPacer
from deployments.protocol import services
from ensemble_serving.protocol import inference_pb2 as pb
from tests.door import Door


class Context:
    """What Serve hands to a method of a deployment."""

    def __init__(self, *metadata):
        self.code, self.details, self._metadata = grpc.StatusCode.OK, "", metadata

    def invocation_metadata(self):
        return self._metadata

    def set_code(self, code):
        self.code = code

    def set_details(self, details):
        self.details = details

    def set_trailing_metadata(self, _):
        pass


def infer(*images):
    request = pb.ModelInferRequest(model_name="ensemble")
    request.inputs.add(name="image", datatype="BYTES", shape=[len(images)]).contents.bytes_contents.extend(images)
    return request


async def status(server, request):
    context = Context()
    await server("inference.GRPCInferenceService/ModelInfer", request.SerializeToString(), context)
    return context.code, context.details.partition(":")[0]


@pytest.fixture
def full():
    """A server without a free place, of which the next refusal would wait; and what frees the place."""
    door, freed = Door(max_in_flight=1), asyncio.Event()
    admission = door.service.ingress.admission
    admission.images = 1

    async def sleep(_):
        await freed.wait()
        admission.images = 0

    admission._refusals = RejectionPacer(lambda: 0.0, sleep)
    return door, GrpcServer(door.service), admission._refusals, freed


async def test_a_call_takes_the_place_that_becomes_free_while_its_refusal_waits(full):
    door, server, refusals, freed = full
    for _ in range(round(LEAST_PACE)):
        assert await status(server, infer(b"a")) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "overloaded")
    waiting = asyncio.create_task(status(server, infer(b"b")))
    async with asyncio.timeout(5):
        while refusals.held == 0:
            await asyncio.sleep(0)
    # What is large would be in memory meanwhile.
    assert await status(server, infer(bytes(MOST_HELD))) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "overloaded")
    context = Context()
    # Nor is it decoded: these bytes are no message.
    await server("inference.GRPCInferenceService/ModelInfer", b"\xff" * (MOST_HELD + 1), context)
    assert context.details.startswith("overloaded")
    assert refusals.held == 1
    freed.set()
    assert await waiting == (grpc.StatusCode.OK, "")
    assert door.images == [b"b"]


async def test_what_tells_of_the_server_is_never_held(full):
    _, server, refusals, _ = full
    for _ in range(round(LEAST_PACE) + 2):
        context = Context()
        answer = await server("inference.GRPCInferenceService/ServerReady", b"", context)
        assert answer.ready
    assert refusals.held == 0


async def test_without_a_key_nothing_is_decoded(tmp_path):
    (tmp_path / "keys").write_text(f"a {'0' * 64}\n")
    service = replace(Door().service, access=Access(tmp_path / "keys"))
    context = Context()
    # Bytes that are no message, and more of them than a request may have.
    await GrpcServer(service)("inference.GRPCInferenceService/ModelInfer", b"\xff" * 33 * 2**20, context)
    assert (context.code, context.details.partition(":")[0]) == (grpc.StatusCode.UNAUTHENTICATED, "unauthenticated")


@pytest.mark.parametrize(
    "method",
    [
        *(f"inference.GRPCInferenceService/{each}" for each in ("ModelInfer", "ModelReady")),
        "tensorflow.serving.PredictionService/Predict",
        *(f"seldon.protos.Seldon/{each}" for each in ("Predict", "SendFeedback")),
        "ensemble.FeedbackService/Label",
        "grpc.health.v1.Health/List",
    ],
)
async def test_every_method_bounds_bytes_and_fields(method):
    server = GrpcServer(Door(max_request_bytes=200_000).service)
    for body, code in ((bytes(200_001), "image_too_large"), (b"\xfa\x07\x00" * 60_000, "invalid_parameter")):
        context = Context()
        await server(method, body, context)
        assert (context.code, context.details.partition(":")[0]) == (grpc.StatusCode.INVALID_ARGUMENT, code)


def test_messages_reach_the_servicer_as_bytes():
    """Serve's server gets every service that its proxy can serve."""
    added = {}

    class Server:
        def add_generic_rpc_handlers(self, _):
            pass

        def add_registered_method_handlers(self, name, methods):
            added[name] = methods

    services.add_all(Mock(), Server())
    assert added.keys() == {each.full_name for each in protocol.services(None)} - {"seldon.protos.Seldon"}
    assert all(each.request_deserializer is None for methods in added.values() for each in methods.values())


async def test_a_place_for_an_output_that_is_not_there_is_refused_before_the_work():
    door, asked = Door(), infer(b"a")
    place = asked.outputs.add(name="probabilities").parameters
    place["shared_memory_region"].string_param = "nowhere"
    place["shared_memory_byte_size"].int64_param = 40
    assert await status(GrpcServer(door.service), asked) == (grpc.StatusCode.NOT_FOUND, "not_found")
    assert door.images == []


async def test_health_says_what_is_served_and_on():
    server = GrpcServer(Door().service)

    async def health(name):
        context = Context()
        answer = await server(
            "grpc.health.v1.Health/Check", HealthCheckRequest(service=name).SerializeToString(), context
        )
        return context.code, answer.status

    assert await health("") == (grpc.StatusCode.OK, HealthCheckResponse.SERVING)
    assert await health("seldon.protos.Seldon") == (grpc.StatusCode.OK, HealthCheckResponse.SERVING)
    # There is no section `feedback`.
    assert await health("ensemble.FeedbackService") == (grpc.StatusCode.OK, HealthCheckResponse.NOT_SERVING)
    server = GrpcServer(replace(Door().service, grpc_services=["grpc.health.v1.Health"]))
    assert (await health("seldon.protos.Seldon"))[0] is grpc.StatusCode.NOT_FOUND


async def test_a_key_that_is_shown_twice_is_refused():
    """A proxy before the server may have looked at the other one."""
    context = Context(("authorization", "Bearer one"), ("authorization", "Bearer two"))
    await GrpcServer(Door().service)(
        "inference.GRPCInferenceService/ModelInfer", infer(b"one").SerializeToString(), context
    )
    assert context.code == grpc.StatusCode.INVALID_ARGUMENT
    assert "'authorization' comes 2 times" in context.details


async def test_an_image_is_typed_or_raw():
    request, context, door = infer(b"one"), Context(), Door()
    request.raw_input_contents.append(b"\3\0\0\0two")
    await GrpcServer(door.service)("inference.GRPCInferenceService/ModelInfer", request.SerializeToString(), context)
    assert (context.code, door.images) == (grpc.StatusCode.INVALID_ARGUMENT, [])
    assert "in several forms" in context.details
