import json
import time

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from ensemble_serving.protocol import inference_pb2 as pb
from tests.core.answers.test_http import TRACE
from tests.levels import expected, level
from tests.networks import CLASSES
from tests.server.clients import infer_request
from tests.server.shared.servers import only
from tests.stub import GRPCInferenceServiceStub

pytestmark = only(2)


@pytest.fixture
def stub(server):
    with grpc.insecure_channel(server.grpc) as channel:
        yield GRPCInferenceServiceStub(channel)


def test_health_and_metadata(stub):
    assert stub.ServerLive(pb.ServerLiveRequest()).live
    assert stub.ServerReady(pb.ServerReadyRequest()).ready
    assert stub.ServerMetadata(pb.ServerMetadataRequest()).name == "ensemble"
    assert stub.ModelReady(pb.ModelReadyRequest(name="ensemble")).ready
    metadata = stub.ModelMetadata(pb.ModelMetadataRequest(name="ensemble"))
    assert [(t.name, t.datatype, list(t.shape)) for t in metadata.inputs] == [("image", "BYTES", [-1])]
    assert [(t.name, t.datatype, list(t.shape)) for t in metadata.outputs] == [
        ("label", "BYTES", [-1]),
        ("index", "INT64", [-1]),
        ("probabilities", "FP32", [-1, 8]),
    ]


def test_typed_contents_are_answered_typed(stub):
    answer = stub.ModelInfer(infer_request([level(10), level(250)]))
    assert (answer.model_name, answer.id, len(answer.raw_output_contents)) == ("ensemble", "7", 0)
    label, index, probabilities = answer.outputs
    assert [text.decode() for text in label.contents.bytes_contents] == [
        CLASSES[i] for i in index.contents.int64_contents
    ]
    received = np.array(probabilities.contents.fp32_contents).reshape(probabilities.shape)
    np.testing.assert_allclose(received, [expected(10), expected(250)], atol=1e-5)


def test_raw_contents_are_answered_raw(stub):
    answer = stub.ModelInfer(infer_request([level(10)], raw=True, outputs=["index", "probabilities"]))
    assert [output.name for output in answer.outputs] == ["index", "probabilities"]
    probabilities = np.frombuffer(answer.raw_output_contents[1], np.float32)
    np.testing.assert_allclose(probabilities, expected(10), atol=1e-5)
    assert np.frombuffer(answer.raw_output_contents[0], np.int64).tolist() == [probabilities.argmax()]


def test_a_callers_trace_goes_on(stub):
    answer = stub.ModelInfer(infer_request([level(10)]), metadata=[("traceparent", TRACE)])
    assert answer.parameters["trace_id"].string_param == TRACE[3:35]
    assert "classifications" not in answer.parameters


def test_top_k_and_members_are_answered_in_a_parameter(stub):
    request = infer_request([level(10), level(250)])
    request.parameters["top_k"].int64_param = 2
    request.parameters["members"].bool_param = True
    first, second = json.loads(stub.ModelInfer(request).parameters["classifications"].string_param)
    assert len(first["top"]) == 2
    assert second["members"]["brightness"]["label"] == "level7"


def bad(**changes):
    request = infer_request([level(10)])
    for name, value in changes.items():
        if name == "parameters":
            request.parameters["top_k"].string_param = value
        elif name == "outputs":
            request.outputs.add(name=value)
        elif name in {"model_name", "model_version"}:
            setattr(request, name, value)
        elif name == "shape":
            request.inputs[0].shape[:] = value
        else:
            setattr(request.inputs[0], name, value)
    return request


def torn():
    request = infer_request([level(10)], raw=True)
    request.raw_input_contents[0] = request.raw_input_contents[0][:-5]
    return request


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (bad(model_name="other"), "NOT_FOUND"),
        (bad(model_version="7"), "NOT_FOUND"),
        (bad(name="picture"), "INVALID_ARGUMENT"),
        (bad(datatype="UINT8"), "INVALID_ARGUMENT"),
        (bad(shape=[2]), "INVALID_ARGUMENT"),
        (bad(outputs="logits"), "INVALID_ARGUMENT"),
        (bad(parameters="x"), "INVALID_ARGUMENT"),
        (torn(), "INVALID_ARGUMENT"),
        (infer_request([]), "INVALID_ARGUMENT"),
        (infer_request([level(1), b"no image"]), "INVALID_ARGUMENT"),
    ],
)
def test_errors(stub, request_, status):
    with pytest.raises(grpc.RpcError) as caught:
        stub.ModelInfer(request_)
    assert caught.value.code().name == status
    assert caught.value.details()
    assert "Traceback" not in caught.value.details()


def test_more_than_a_request_can_hold_is_refused_before_it_is_taken_apart(stub):
    many = infer_request([], raw=True)
    many.raw_input_contents[0] = bytes(20 * 2**20)
    large = infer_request([bytes(33 * 2**20)])
    pixels = infer_request([level(1)])
    pixels.inputs[0].datatype = "UINT8"
    pixels.raw_input_contents.append(bytes(10))
    for request, told in ((many, "1 to 64 images"), (large, "image_too_large"), (pixels, "datatype BYTES")):
        started = time.monotonic()
        with pytest.raises(grpc.RpcError, match=told) as caught:
            stub.ModelInfer(request)
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert time.monotonic() - started < 10


@pytest.mark.parametrize("call", ["ModelMetadata", "ModelConfig", "ModelStatistics"])
def test_another_model_is_not_found(stub, call):
    with pytest.raises(grpc.RpcError) as caught:
        getattr(stub, call)(getattr(pb, f"{call}Request")(name="other"))
    assert caught.value.code() == grpc.StatusCode.NOT_FOUND


def test_another_model_is_not_ready(stub):
    for name, version in (("other", ""), ("ensemble", "7")):
        assert not stub.ModelReady(pb.ModelReadyRequest(name=name, version=version)).ready


def call(server, method, body):
    """The status and the details of a call with a body that no stub has made."""
    with grpc.insecure_channel(server.grpc) as channel:
        try:
            channel.unary_unary(method)(body, timeout=30)
        except grpc.RpcError as err:
            return err.code().name, err.details()
    return "OK", ""


def test_what_is_no_message_is_the_clients_mistake(server):
    status, details = call(server, "/inference.GRPCInferenceService/ModelInfer", b"\xff\xff\xff")
    assert (status, details) == (
        "INVALID_ARGUMENT",
        "invalid_parameter: the request is no inference.ModelInferRequest",
    )


def test_millions_of_empty_inputs_are_not_decoded(server):
    status, details = call(server, "/inference.GRPCInferenceService/ModelInfer", b"*\0" * 8_000_000)
    assert (status, details.partition(";")[0]) == (
        "INVALID_ARGUMENT",
        "invalid_parameter: the request has more than 1536 fields",
    )


def test_health_is_watched(server):
    with grpc.insecure_channel(server.grpc) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), timeout=60)
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
        watch.cancel()


def test_what_is_not_built_says_so_plainly(server):
    for method in ("CudaSharedMemoryStatus", "Nothing"):
        status, details = call(server, f"/inference.GRPCInferenceService/{method}", b"")
        assert status == "UNIMPLEMENTED"
        assert "IngressReplica" not in details
    for method in ("RepositoryModelLoad", "RepositoryModelUnload"):
        status, details = call(server, f"/inference.GRPCInferenceService/{method}", b"")
        assert (status, "access.operators turns it on" in details) == ("NOT_FOUND", True)
    assert call(server, "/grpc.health.v1.Health/Check", b"\n\x03xyz")[0] == "NOT_FOUND"
    assert call(server, "/grpc.health.v1.Health/List", b"")[0] == "OK"
