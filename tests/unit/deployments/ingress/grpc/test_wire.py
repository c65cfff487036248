"""What a message may cost, which is found before it is decoded."""

import tracemalloc

import pytest
from google.protobuf.message import DecodeError

from deployments.contract.errors import ImageTooLarge, InvalidParameter
from deployments.ingress.grpc import wire
from deployments.ingress.routes import max_fields
from ensemble_features.feedback import feedback_pb2
from ensemble_features.feedback.labels import MAX_LABELS
from ensemble_interop.seldon import seldon_pb2
from ensemble_interop.tensorflow_serving import tensorflow_serving_pb2
from ensemble_serving.protocol import inference_pb2

INFER, PREDICT, LABEL, SELDON = (
    inference_pb2.ModelInferRequest,
    tensorflow_serving_pb2.PredictRequest,
    feedback_pb2.LabelRequest,
    seldon_pb2.SeldonMessage,
)
FIELDS = max_fields(64)


def varint(number):
    if number < 128:
        return bytes([number])
    return bytes([number & 127 | 128]) + varint(number >> 7)


def field(number, payload):
    return varint(number << 3 | wire.LENGTH) + varint(len(payload)) + payload


def decoded(body, message=INFER, max_bytes=2**25, fields=FIELDS):
    return wire.decoded(body, message, max_bytes, fields)


def contents(number, payload):
    """A request whose one input has these packed numbers."""
    return field(5, field(5, field(number, payload)))


class Undecoded:
    """A type of message whose decoder is not to be reached."""

    DESCRIPTOR = INFER.DESCRIPTOR

    @staticmethod
    def FromString(_):  # noqa: N802
        raise AssertionError


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(field(5, b"") * 100_000, id="inputs"),
        pytest.param(field(5, field(5, field(8, b"") * 100_000)), id="elements"),
        pytest.param(field(5, b"\x18\x01" * 100_000), id="a shape that is not packed"),
        pytest.param(field(4, b"") * 100_000, id="entries of a map"),
        pytest.param(field(99, b"") * 100_000, id="fields that nobody reads"),
        pytest.param(b"\xf8\x01\x00" * 100_000, id="numbers that nobody reads"),
        pytest.param(contents(3, bytes(3 * 2**20)), id="packed integers"),
        pytest.param(contents(1, bytes(2**20)) * 3, id="packed truths, of several inputs"),
        pytest.param(b"\x0b" * 100_000, id="groups"),
        pytest.param(b"\xff" * 100_000, id="a number without an end"),
    ],
)
def test_what_costs_more_than_its_bytes_is_refused_before_it_is_decoded(body):
    tracemalloc.start()
    try:
        with pytest.raises(InvalidParameter):
            decoded(body, Undecoded)
        assert tracemalloc.get_traced_memory()[1] < 2**16
    finally:
        tracemalloc.stop()


def test_more_bytes_than_a_request_may_have_are_not_looked_at():
    with pytest.raises(ImageTooLarge, match="1025 bytes; at most 1024"):
        decoded(bytes(1025), Undecoded, max_bytes=1024)


def test_requests_as_large_as_they_may_be_are_decoded():
    request = INFER(model_name="ensemble", id="i", raw_input_contents=[bytes(2**20)])
    for name in ("classes", "probabilities", "label"):
        request.outputs.add(name=name).parameters["classification"].int64_param = 3
    tensor = request.inputs.add(name="image", datatype="BYTES", shape=[64, 1])
    tensor.contents.bytes_contents.extend([bytes(1000)] * 64)
    tensor.contents.fp32_contents.extend([0.5] * 1_000_000)
    tensor.contents.uint_contents.extend([255] * 64 * 32 * 32 * 3)
    assert decoded(request.SerializeToString()) == request

    label = feedback_pb2.TrueLabel(request_id="r" * 36, name="cat", image=3)
    request = LABEL(labels=[label] * MAX_LABELS)
    assert decoded(request.SerializeToString(), LABEL, fields=max_fields(MAX_LABELS)) == request


@pytest.mark.parametrize(
    "body", [b"\xff\xff\xff", b"\x0a\x05abc", b"\x0d\x00", field(5, b"\x0a\x05abc") + b"\x0a\x09x"]
)
def test_what_is_no_message_is_said_to_be_none(body):
    with pytest.raises(DecodeError):
        INFER.FromString(body)
    with pytest.raises(InvalidParameter, match=r"the request is no inference\.ModelInferRequest"):
        decoded(body)
