"""TensorFlow Serving's API: its REST forms, its errors, and its gRPC messages."""

import json
from base64 import b64encode

import grpc
import httpx
import numpy as np
import pytest

from ensemble_interop.tensorflow_serving import tensorflow_serving_pb2 as pb
from tests.levels import expected, level
from tests.networks import CLASSES

PATH = "/v1/models/ensemble"


def b64(content):
    return {"b64": b64encode(content).decode()}


def ask(server, path, body):
    return httpx.post(server.url + path, content=json.dumps(body), timeout=60)


def test_rows_and_columns(server):
    two = [b64(level(10)), b64(level(250))]
    wanted = [expected(10), expected(250)]
    columns = []
    for path in (f"{PATH}:predict", f"{PATH}/versions/1:predict", f"{PATH}/versions/0:predict"):
        for rows in (two, [{"image": value} for value in two]):
            answer = ask(server, path, {"signature_name": "serving_default", "instances": rows}).json()
            told = answer["predictions"]
            np.testing.assert_allclose([row["probabilities"] for row in told], wanted, atol=1e-5)
            assert [row["label"] for row in told] == [CLASSES[row["index"]] for row in told]
        for inputs in (two, {"image": two}):
            columns.append(ask(server, path, {"inputs": inputs}).json()["outputs"])
            np.testing.assert_allclose(columns[-1]["probabilities"], wanted, atol=1e-5)
    assert columns[0]["label"] == [row["label"] for row in told]
    assert columns[0]["index"] == [row["index"] for row in told]


def test_status_and_metadata(server):
    ready = {"version": "1", "state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}}
    for path in (PATH, f"{PATH}/versions/1"):
        assert httpx.get(server.url + path).json() == {"model_version_status": [ready]}
        metadata = httpx.get(f"{server.url}{path}/metadata").json()
        signature = metadata["metadata"]["signature_def"]["signature_def"]["serving_default"]
        assert signature["inputs"]["image"]["dtype"] == "DT_STRING"
        assert [dim["size"] for dim in signature["outputs"]["probabilities"]["tensor_shape"]["dim"]] == ["-1", "8"]


@pytest.mark.parametrize(
    ("path", "body", "status", "told"),
    [
        ("/v1/models/other:predict", {}, 404, "Servable not found for request: Latest(other)"),
        (f"{PATH}/versions/7:predict", {}, 404, "Servable not found for request: Specific(ensemble, 7)"),
        (f"{PATH}:classify", {}, 404, ":classify is not served"),
        (f"{PATH}:predict", {}, 400, "'instances'"),
        (f"{PATH}:predict", [], 400, "JSON object"),
        (f"{PATH}:predict", {"instances": [], "inputs": []}, 400, "either"),
        (f"{PATH}:predict", {"instances": []}, 400, "1 to 64 images"),
        (f"{PATH}:predict", {"instances": [b64(b"x")] * 65}, 400, "1 to 64 images"),
        (f"{PATH}:predict", {"instances": [{"b64": "%"}]}, 400, "base64"),
        (f"{PATH}:predict", {"instances": [{"b64": 1}]}, 400, "b64"),
        (f"{PATH}:predict", {"instances": [7]}, 400, "b64"),
        (f"{PATH}:predict", {"instances": ["no image"]}, 400, 'an image is {"b64": ...}'),
        (f"{PATH}:predict", {"instances": ["\ud800"]}, 400, "base64"),
        (f"{PATH}:predict", {"instances": [b64(b"x")["b64"]]}, 400, 'an image is {"b64": ...}'),
        (f"{PATH}:predict", {"instances": [{"image": b64(b"x")["b64"]}]}, 400, 'an image is {"b64": ...}'),
        (f"{PATH}:predict", {"instances": [{"picture": b64(b"x")}]}, 400, "'image'"),
        (f"{PATH}:predict", {"inputs": {"picture": [b64(b"x")]}}, 400, "'image'"),
        (f"{PATH}:predict", {"inputs": {"image": b64(b"x")}}, 400, "array"),
        (f"{PATH}:predict", {"instances": [b64(b"no image")]}, 400, "not an image"),
        (f"{PATH}:predict", {"signature_name": "other", "instances": []}, 400, "signature"),
        (f"{PATH}:predict", {"signature_name": 7, "instances": []}, 400, "signature"),
    ],
)
def test_errors(server, path, body, status, told):
    answer = ask(server, path, body)
    assert answer.status_code == status
    assert told in answer.json()["error"]


def call(server, method, request, answer):
    with grpc.insecure_channel(server.grpc) as channel:
        ask = channel.unary_unary(
            f"/tensorflow.serving.{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=answer.FromString,
        )
        return ask(request, timeout=60)


def predict(name="ensemble", version=None, signature="", input_="image", outputs=(), **tensor):
    request = pb.PredictRequest(model_spec={"name": name, "signature_name": signature}, output_filter=outputs)
    if version is not None:
        request.model_spec.version.value = version
    wanted = {"dtype": pb.DT_STRING, "string_val": [level(10)], **tensor}
    shape = wanted.pop("shape", [len(wanted["string_val"])])
    request.inputs[input_].CopyFrom(pb.TensorProto(tensor_shape={"dim": [{"size": size} for size in shape]}, **wanted))
    return request


def test_an_output_filter(server):
    answer = call(server, "PredictionService/Predict", predict(outputs=["label"]), pb.PredictResponse)
    assert list(answer.outputs) == ["label"]
    assert answer.outputs["label"].string_val[0].decode() == CLASSES[expected(10).argmax()]


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (predict(name="other"), "NOT_FOUND"),
        (predict(version=7), "NOT_FOUND"),
        (predict(signature="other"), "INVALID_ARGUMENT"),
        (predict(input_="picture"), "INVALID_ARGUMENT"),
        (predict(outputs=["logits"]), "INVALID_ARGUMENT"),
        (predict(dtype=pb.DT_FLOAT), "INVALID_ARGUMENT"),
        (predict(dtype=23), "INVALID_ARGUMENT"),
        (predict(shape=[2]), "INVALID_ARGUMENT"),
        (predict(shape=[-1]), "INVALID_ARGUMENT"),
        (predict(shape=[1, 2]), "INVALID_ARGUMENT"),
        (predict(shape=[2**62, 2**62]), "INVALID_ARGUMENT"),
        (predict(string_val=[], shape=[0]), "INVALID_ARGUMENT"),
        (predict(string_val=[b"x"] * 65), "INVALID_ARGUMENT"),
        (predict(tensor_content=b"x"), "INVALID_ARGUMENT"),
        (predict(string_val=[b"no image"]), "INVALID_ARGUMENT"),
    ],
)
def test_errors_over_grpc(server, request_, status):
    with pytest.raises(grpc.RpcError) as caught:
        call(server, "PredictionService/Predict", request_, pb.PredictResponse)
    assert caught.value.code().name == status
    assert "Traceback" not in caught.value.details()


def test_other_mistakes_over_grpc(server):
    field = pb.GetModelMetadataRequest(model_spec={"name": "ensemble"}, metadata_field=["everything"])
    with pytest.raises(grpc.RpcError) as caught:
        call(server, "PredictionService/GetModelMetadata", field, pb.GetModelMetadataResponse)
    assert caught.value.code().name == "INVALID_ARGUMENT"
    with pytest.raises(grpc.RpcError) as caught:
        call(server, "PredictionService/Classify", predict(), pb.PredictResponse)
    assert caught.value.code().name == "UNIMPLEMENTED"
