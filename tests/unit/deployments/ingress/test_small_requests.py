"""What a small request names often is counted before it is copied, in every protocol."""

import json
import tracemalloc

import grpc
import pytest

from deployments.contract.errors import InvalidParameter, Overloaded
from deployments.ingress.grpc.server import GrpcServer
from deployments.ingress.open_inference import tensors
from deployments.ingress.open_inference.model import succeeded
from ensemble_serving.protocol import inference_pb2 as pb
from tests.door import Door
from tests.unit.deployments.ingress.grpc.test_server import Context, infer

# Most of what is allocated while a request of less than half a megabyte is answered.
MOST_BYTES = 4_000_000


async def call(door, name, request):
    context = Context()
    answer = await GrpcServer(door.service)(name, request.SerializeToString(), context)
    return context.code, context.details, answer


@pytest.fixture
def peak():
    """The most that was allocated at a time since the test began, bytes."""
    tracemalloc.start()
    yield lambda: tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()


@pytest.mark.parametrize(
    "data",
    [["x" * 100_000, *["y"] * 999], [["x" * 100_000], *[["y"]] * 999], [{}] * 1000, [None] * 1000],
)
def test_what_is_no_number_is_refused_before_an_array_is_made(peak, data):
    with pytest.raises(InvalidParameter, match="numbers"):
        tensors.from_list("x", "FP32", [1000], data)
    assert peak() < MOST_BYTES


@pytest.mark.parametrize("data", [[10**400], [[[[[[[[[1]]]]]]]]], [[1, 2], [3]], [True, 1.5, "1"]])
def test_numbers_that_no_array_has_are_refused(data):
    with pytest.raises(InvalidParameter):
        tensors.from_list("x", "FP32", [1], data)


def test_numbers_one_by_one_are_bounded():
    with pytest.raises(InvalidParameter, match="send them in binary"):
        tensors.from_numbers("x", "UINT8", [tensors.MOST_NUMBERS + 1], range(tensors.MOST_NUMBERS + 1))


@pytest.mark.parametrize(("names", "hint"), [(["label"] * 2, "asked for twice"), (["label"] * 400, "name each once")])
async def test_an_output_is_asked_for_once(names, hint):
    door, request = Door(), infer(b"a")
    for name in names:
        request.outputs.add(name=name)
    code, details, _ = await call(door, "inference.GRPCInferenceService/ModelInfer", request)
    assert (code, hint in details) == (grpc.StatusCode.INVALID_ARGUMENT, True)
    assert door.images == []


@pytest.mark.parametrize(("names", "hint"), [(["label"] * 2, "asked for twice"), (["label"] * 4000, "name each once")])
def test_an_output_is_asked_for_once_over_http(names, hint):
    door = Door()
    tensor = {"name": "image", "datatype": "BYTES", "shape": [1], "data": ["eA=="]}
    asked = {"inputs": [tensor], "outputs": [{"name": name} for name in names]}
    status, told = door.ask("/v2/models/ensemble/infer", json.dumps(asked).encode())
    assert (status, hint in told["error"]) == (422, True)
    assert door.images == []


async def test_inputs_are_counted_before_they_are_listed(peak):
    request = pb.ModelInferRequest(model_name="ensemble")
    for _ in range(1000):
        request.inputs.add()
    code, details, _ = await call(Door(), "inference.GRPCInferenceService/ModelInfer", request)
    assert (code, "it has 1000" in details) == (grpc.StatusCode.INVALID_ARGUMENT, True)
    assert peak() < MOST_BYTES


def test_an_image_s_error_keeps_when_to_come_again():
    with pytest.raises(Overloaded) as caught:
        succeeded([Overloaded("later", retry_after_s=1.5)])
    assert caught.value.retry_after_s == 1.5


def test_the_id_that_an_answer_repeats_is_bounded_over_http():
    door = Door()
    tensor = {"name": "image", "datatype": "BYTES", "shape": [1], "data": ["eA=="]}
    for length, status, text in ((1001, 422, "id: it has more than 1000 characters"), (1000, 200, "x" * 1000)):
        asked = {"id": "x" * length, "inputs": [tensor]}
        answer = door.ask("/v2/models/ensemble/infer", json.dumps(asked).encode())
        assert (answer[0], text in json.dumps(answer[1]), len(door.images)) == (status, True, int(status == 200))


async def test_the_id_that_an_answer_repeats_is_bounded_over_grpc():
    door, request = Door(), infer(b"a")
    request.id = "x" * 1001
    code, details, _ = await call(door, "inference.GRPCInferenceService/ModelInfer", request)
    assert (code, "id: it has more than 1000" in details) == (grpc.StatusCode.INVALID_ARGUMENT, True)
    assert door.images == []
    request.id = "x" * 1000
    code, _, answer = await call(door, "inference.GRPCInferenceService/ModelInfer", request)
    assert (code, answer.id) == (grpc.StatusCode.OK, request.id)
