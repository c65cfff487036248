"""TensorFlow Serving's API as it is spoken; tests/server/remote asks a server made of its own messages."""

import asyncio
import base64
import json

import grpc
import numpy as np
import pytest

from deployments.contract.errors import ConfigurationError, InferenceFailed
from deployments.contract.member import MemberInterface
from deployments.contract.preprocessing import AsSent, Preprocessing
from ensemble_interop.tensorflow_serving import tensorflow_serving_pb2 as pb
from ensemble_interop.tensorflow_serving.member import TensorFlowServing
from tests.batches import batch, errors
from tests.model_server import StandIn

LABELS = tuple("abcd")
SCORES = np.array([[0.1, 0.2, 0.3, 0.4], [0.4, 0.3, 0.2, 0.1]], np.float32)
PIXELS = np.arange(2 * 8 * 8 * 3, dtype=np.uint8).reshape(2, 8, 8, 3)
STRING, UINT8, FLOAT, DOUBLE, HALF = 7, 4, 1, 2, 19
# The field of a tensor that has values of a type, as TensorFlow Serving sends them by default.
VALUES = {
    FLOAT: ("float_val", SCORES),
    DOUBLE: ("double_val", SCORES.astype(np.float64)),
    HALF: ("half_val", SCORES.astype(np.float16).view(np.uint16)),
}


class TensorFlow(StandIn):
    """Answers `SCORES`, and keeps what it was sent: an array, or bytes."""

    def __init__(self, takes=UINT8, output="scores"):
        super().__init__()
        self.takes, self.output, self.sent, self.version = takes, output, None, "5"
        self.gives = FLOAT

    async def start(self, way):
        if way == "http":
            return await super().start(way)
        self.server = grpc.aio.server()
        calls = {"GetModelMetadata": pb.GetModelMetadataRequest, "Predict": pb.PredictRequest}
        methods = {
            name: grpc.unary_unary_rpc_method_handler(
                getattr(self, name), request.FromString, lambda answer: answer.SerializeToString()
            )
            for name, request in calls.items()
        }
        service = grpc.method_handlers_generic_handler("tensorflow.serving.PredictionService", methods)
        self.server.add_generic_rpc_handlers((service,))
        port = self.server.add_insecure_port("127.0.0.1:0")
        await self.server.start()
        return port

    async def GetModelMetadata(self, request, context):  # noqa: N802
        answer = pb.GetModelMetadataResponse()
        answer.model_spec.version.value = int(self.version)
        signatures = pb.SignatureDefMap()
        signature = signatures.signature_def["serving_default"]
        shape = (-1,) if self.takes == STRING else (-1, 8, 8, 3)
        for tensors, name, dtype, extents in (
            (signature.inputs, "x", self.takes, shape),
            (signature.outputs, "scores", self.gives, (-1, 4)),
        ):
            tensors[name].dtype = dtype
            for extent in extents:
                tensors[name].tensor_shape.dim.add(size=extent)
        answer.metadata["signature_def"].Pack(signatures)
        return answer

    async def Predict(self, request, context):  # noqa: N802
        self.label = request.model_spec.version_label
        tensor = request.inputs["x"]
        shape = [dim.size for dim in tensor.tensor_shape.dim]
        self.sent = list(tensor.string_val) or np.frombuffer(tensor.tensor_content, np.uint8).reshape(shape)
        answer = pb.PredictResponse()
        answer.model_spec.version.value = int(self.version)
        answer.outputs[self.output].dtype = self.gives
        for extent in SCORES.shape:
            answer.outputs[self.output].tensor_shape.dim.add(size=extent)
        field, values = VALUES[self.gives]
        getattr(answer.outputs[self.output], field).extend(values.ravel().tolist())
        return answer

    async def _answer(self, method, path, headers, body):
        if path == "/v1/models/m":
            return 200, b"{}"
        if path == "/v1/models/m/metadata":
            types = {UINT8: "DT_UINT8", STRING: "DT_STRING"}
            dims = [{"size": "-1"}] if self.takes == STRING else [{"size": size} for size in ("-1", "8", "8", "3")]
            x = {"dtype": types[self.takes], "tensor_shape": {"dim": dims}}
            scores = {"dtype": "DT_FLOAT", "tensor_shape": {"dim": [{"size": "-1"}, {"size": "4"}]}}
            signature = {"inputs": {"x": x}, "outputs": {"scores": scores}}
            told = {"signature_def": {"signature_def": {"serving_default": signature}}}
            return 200, json.dumps({"model_spec": {"version": self.version}, "metadata": told}).encode()
        rows = json.loads(body)["instances"]
        if self.takes == STRING:
            self.sent = [base64.b64decode(row["b64"]) for row in rows]
        else:
            self.sent = np.array(rows, np.uint8)
        plain = SCORES.tolist()
        named = [{self.output: row, "classes": 3} for row in plain]
        return 200, json.dumps({"predictions": plain if self.output == "scores" else named}).encode()


@pytest.fixture(params=["http", "grpc"])
def way(request):
    return request.param


def member(way, port, **more):
    return TensorFlowServing(kind="tensorflow_serving", name="m", url=f"{way}://127.0.0.1:{port}", **more)


async def test_pixels_go_as_they_are_and_the_version_comes_back(way):
    server = TensorFlow()
    config = member(way, await server.start(way))
    answer = await config.make(None, MemberInterface(Preprocessing((8, 8)), LABELS), 8)(batch(PIXELS))
    np.testing.assert_array_equal(answer.payload, SCORES)
    np.testing.assert_array_equal(server.sent, PIXELS)
    assert answer.items[0].versions == {"m": "5"}
    await server.stop()


@pytest.mark.parametrize("gives", [DOUBLE, HALF])
async def test_scores_of_another_precision(gives):
    server = TensorFlow()
    server.gives = gives
    config = member("grpc", await server.start("grpc"))
    answer = await config.make(None, MemberInterface(Preprocessing((8, 8)), LABELS), 8)(batch(PIXELS))
    np.testing.assert_allclose(answer.payload, SCORES, rtol=1e-3)
    await server.stop()


@pytest.mark.parametrize("more", [2**16, -(2**16), -(2**31)])
async def test_a_half_of_more_than_16_bits_is_the_members_failure(more, monkeypatch):
    # Its last 16 bits are those of a good answer.
    halves = VALUES[HALF][1].astype(int)
    halves[0, 0] += more
    monkeypatch.setitem(VALUES, HALF, ("half_val", halves))
    server = TensorFlow()
    server.gives = HALF
    config = member("grpc", await server.start("grpc"))
    answer = await config.make(None, MemberInterface(Preprocessing((8, 8)), LABELS), 8)(batch(PIXELS))
    assert {type(error) for error in errors(answer).values()} == {InferenceFailed}
    await server.stop()


async def test_images_as_they_were_sent(way):
    server = TensorFlow(STRING)
    config = member(way, await server.start(way))
    answer = await config.make(None, MemberInterface(AsSent(), LABELS), 8)(batch([b"first", b"second\xff"]))
    np.testing.assert_array_equal(answer.payload, SCORES)
    assert server.sent == [b"first", b"second\xff"]
    await server.stop()


async def test_another_output_is_the_members_failure(way):
    server = TensorFlow(output="embedding")
    config = member(way, await server.start(way))
    answer = await config.make(None, MemberInterface(Preprocessing((8, 8)), LABELS), 8)(batch(PIXELS))
    assert {type(error) for error in errors(answer).values()} == {InferenceFailed}
    await server.stop()


async def test_a_version_may_be_a_label():
    server = TensorFlow()
    config = member("grpc", await server.start("grpc"), version="stable")
    await config.make(None, MemberInterface(Preprocessing((8, 8)), LABELS), 8)(batch(PIXELS))
    assert server.label == "stable"
    await server.stop()


async def test_another_signature_is_told():
    server = TensorFlow()
    config = member("grpc", await server.start("grpc"), signature_name="other")
    with pytest.raises(ConfigurationError, match="no signature 'other'"):
        # It asks from a thread, while this loop answers.
        await asyncio.to_thread(config.signature, None)
    await server.stop()
