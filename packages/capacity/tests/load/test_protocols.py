import base64
import json
from email.parser import BytesParser

import numpy as np
import pytest

from ensemble_capacity.load.protocols import Classify, chosen
from ensemble_capacity.load.tensors import OpenInference, TensorFlowServing, filled
from ensemble_interop.remote.tensors import Tensor
from ensemble_interop.tensorflow_serving import tensorflow_serving_pb2 as tf
from ensemble_serving.protocol import inference_pb2 as pb
from ensemble_serving.transports import Server, connect
from ensemble_serving.url import parsed
from scripts.errors import ScriptError
from tests import pictures
from tests.local_servers import GrpcServer, HttpServer, Reply

JPEG = pictures.jpeg(60, 80)
IMAGE, PIXELS = Tensor("image", "BYTES", (-1,)), Tensor("x", "FP32", (-1, 3, 32, 48))


def test_an_image_is_a_body_and_several_are_a_form():
    one = Classify().request([JPEG])
    assert (one.path, one.body, dict(one.headers)) == ("/classify", JPEG, {"content-type": "image/jpeg"})
    several = Classify().request([JPEG, b"other"])
    head = f"content-type: {dict(several.headers)['content-type']}\r\n\r\n".encode()
    parts = BytesParser().parsebytes(head + several.body).get_payload()
    assert [part.get_payload(decode=True) for part in parts] == [JPEG, b"other"]
    assert [part.get_content_type() for part in parts] == ["image/jpeg", "application/octet-stream"]
    assert {part.get_param("name", header="content-disposition") for part in parts} == {"image"}


@pytest.mark.parametrize(
    ("url", "name", "kind", "path"),
    [
        ("http://h", None, Classify, "/classify"),
        ("http://h/predict", None, Classify, "/predict"),
        ("http://h?priority=2", None, Classify, "/classify?priority=2"),
        ("http://h/v2", None, OpenInference, None),
        ("http://h/v1/models/m", None, TensorFlowServing, None),
        ("grpc://h", None, OpenInference, None),
        ("grpc://h", "tensorflow-serving", TensorFlowServing, None),
        ("http://h", "open-inference", OpenInference, None),
    ],
)
def test_a_url_shows_its_protocol(url, name, kind, path):
    protocol = chosen(parsed(url), name, "m", {})
    assert type(protocol) is kind
    assert path is None or protocol.path == path
    with pytest.raises(ValueError, match="over gRPC there are open-inference"):
        chosen(parsed("grpc://h"), "classify", "m", {})


@pytest.mark.parametrize("binary", [False, True])
def test_tensors_over_http_are_bytes_or_json(binary):
    protocol = OpenInference("m", False, {}, (IMAGE, PIXELS), binary)
    request = protocol.request([JPEG, JPEG])
    assert request.path == "/v2/models/m/infer"
    headers = dict(request.headers)
    size = int(headers.get("inference-header-content-length", len(request.body)))
    document = json.loads(request.body[:size])
    image, x = document["inputs"]
    assert (image["datatype"], image["shape"]) == ("BYTES", [2])
    assert (x["datatype"], x["shape"]) == ("FP32", [2, 3, 32, 48])
    if binary:
        element = len(JPEG).to_bytes(4, "little") + JPEG
        assert request.body[size:].startswith(element + element)
        assert len(request.body) == size + 2 * len(element) + 2 * 3 * 32 * 48 * 4
    else:
        assert [base64.b64decode(text) for text in image["data"]] == [JPEG, JPEG]
        assert len(x["data"]) == 2 * 3 * 32 * 48


def test_tensors_over_grpc_are_raw():
    request = OpenInference("m", True, {}, inputs=(PIXELS,)).request([JPEG])
    message = pb.ModelInferRequest.FromString(request.body)
    assert (message.model_name, message.inputs[0].name, list(message.inputs[0].shape)) == ("m", "x", [1, 3, 32, 48])
    pixels = np.frombuffer(message.raw_input_contents[0], np.float32)
    assert 0 <= pixels.min() < pixels.max() <= 255


def test_tensorflow_servings_requests():
    rest = TensorFlowServing("m", False, {}, (IMAGE,)).request([JPEG, b"x"])
    assert rest.path == "/v1/models/m:predict"
    rows = json.loads(rest.body)["instances"]
    assert [base64.b64decode(row["b64"]) for row in rows] == [JPEG, b"x"]
    named = TensorFlowServing("m", False, {}, (IMAGE, Tensor("k", "INT64", (-1, 1)))).request([JPEG])
    assert set(json.loads(named.body)["instances"][0]) == {"image", "k"}
    message = tf.PredictRequest.FromString(TensorFlowServing("m", True, {}, (IMAGE, PIXELS)).request([JPEG]).body)
    assert list(message.inputs["image"].string_val) == [JPEG]
    assert [dim.size for dim in message.inputs["x"].tensor_shape.dim] == [1, 3, 32, 48]


def test_inputs_are_filled_by_what_they_are():
    tensors = filled(
        [Tensor("t", "BYTES", (-1, 1)), Tensor("n", "INT32", (-1, 5)), Tensor("p", "UINT8", (-1, 8, 9, 3))],
        [JPEG] * 3,
        {},
    )
    assert [tensor.shape for tensor in tensors] == [(3, 1), (3, 5), (3, 8, 9, 3)]
    assert [getattr(tensor.values, "dtype", None) for tensor in tensors] == [None, np.int32, np.uint8]


@pytest.mark.parametrize(
    ("source", "images", "message"),
    [
        (Tensor("x", "FP32", (-1, -1, -1, 3)), [JPEG], r"--shape x:-1,-1,3"),
        (Tensor("x", "FP32", (1, 3, 8, 8)), [JPEG, JPEG], r"--batch 2: .* takes 1 at a time"),
        (Tensor("x", "BF17", (-1, 3)), [JPEG], r"--model: its input 'x' is of BF17"),
        (Tensor("x", "UINT8", (-1, 8, 8, 3)), [b"no image"], r"--images: one of them can't be decoded"),
    ],
)
def test_what_can_not_be_filled_names_the_flag(source, images, message):
    with pytest.raises(ScriptError, match=message):
        filled([source], images, {})
    given = {"x": (8, 8, 3)}
    assert filled([Tensor("x", "FP32", (-1, -1, -1, 3))], [JPEG], given)[0].shape == (1, 8, 8, 3)


def described(answers):
    return HttpServer(
        lambda asked: (
            Reply(body=json.dumps(answers[asked.path]).encode())
            if asked.path in answers
            else Reply(404, b'{"error": "no such model"}')
        )
    )


MODEL = {
    "name": "m",
    "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}],
    "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 2]}],
}
ANSWERS = {"/v2": {"extensions": ["binary_tensor_data"]}, "/v2/models/m": MODEL, "/v2/models/m/ready": {}}


async def test_a_model_is_described_by_its_server():
    with described(ANSWERS) as server:
        transport = connect(Server(server.url))
        protocol = await OpenInference("m", False, {}).described(transport, server.url, "secret")
        assert (protocol.inputs, protocol.binary) == ((Tensor("x", "FP32", (-1, 4)),), True)
        assert server.asked[0].headers["authorization"] == "Bearer secret"
        with pytest.raises(ScriptError, match=r"--model: .* has no model 'other'.*404"):
            await OpenInference("other", False, {}).described(transport, server.url, "")
        await transport.close()
        url = server.url
    with pytest.raises(ScriptError, match=r"URL: no server"):
        await OpenInference("m", False, {}).described(connect(Server(url)), url, "")


async def test_a_model_is_described_over_grpc():
    told = pb.ModelMetadataResponse(inputs=[{"name": "x", "datatype": "FP32", "shape": [-1, 4]}])
    answers = {"ModelReady": pb.ModelReadyResponse(ready=True), "ModelMetadata": told}
    with GrpcServer(lambda method, _: answers[method.rpartition("/")[2]].SerializeToString()) as server:
        transport = connect(Server(server.url))
        protocol = await OpenInference("m", True, {}).described(transport, server.url, "")
        assert protocol.inputs == (Tensor("x", "FP32", (-1, 4)),)
        await transport.close()
