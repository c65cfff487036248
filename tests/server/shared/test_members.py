"""Each member as a model of its own, over HTTP and gRPC."""

import json
from concurrent.futures import ThreadPoolExecutor

import grpc
import httpx
import numpy as np
import pytest

from ensemble_serving.protocol import inference_pb2 as pb
from tests.core.answers.test_http import BINARY
from tests.networks import one_hot
from tests.server.server import eventually
from tests.server.shared.servers import only
from tests.stub import GRPCInferenceServiceStub

pytestmark = only(2)
SIZES = {"one": 32, "six": 48, "brightness": 32}


def grey(*levels, size=32):
    return np.stack([np.full((size, size, 3), level, np.uint8) for level in levels])


def looked(*levels):
    """What the member `brightness` says of grey levels, by arithmetic."""
    logits = -0.5 * np.abs(np.array(levels)[:, None] - (np.arange(8) + 0.5) * 32)
    grown = np.exp(logits - logits.max(1, keepdims=True))
    return grown / grown.sum(1, keepdims=True)


def infer(server, member, pixels, **changes):
    tensor = {"name": "pixels", "datatype": "UINT8", "shape": list(pixels.shape)}
    head = {"inputs": [{**tensor, "parameters": {"binary_data_size": pixels.nbytes}, **changes}]}
    body = json.dumps(head).encode()
    headers = {BINARY: str(len(body))}
    url = f"{server.url}/v2/models/{member}/infer"
    return httpx.post(url, content=body + pixels.tobytes(), headers=headers, timeout=60)


@pytest.mark.parametrize("member", SIZES)
def test_each_is_described(server, member):
    metadata = httpx.get(f"{server.url}/v2/models/{member}").json()
    size = SIZES[member]
    assert metadata["inputs"] == [{"name": "pixels", "datatype": "UINT8", "shape": [-1, size, size, 3]}]
    assert metadata["outputs"] == [{"name": "probabilities", "datatype": "FP32", "shape": [-1, 8]}]
    assert metadata["versions"] == ["1"]
    config = httpx.get(f"{server.url}/v2/models/{member}/versions/1/config").json()
    assert (config["max_batch_size"], config["input"][0]["dims"]) == (64, [size, size, 3])
    assert httpx.get(f"{server.url}/v2/models/{member}/ready").status_code == 200
    index = httpx.post(f"{server.url}/v2/repository/index").json()
    assert {"name": member, "version": "1", "state": "READY", "reason": ""} in index


def test_each_answers_its_own(server):
    for member, expected in (("one", [one_hot(1)] * 2), ("six", [one_hot(6)] * 2), ("brightness", looked(10, 250))):
        answer = infer(server, member, grey(10, 250, size=SIZES[member])).json()
        [output] = answer["outputs"]
        assert (answer["model_name"], output["shape"]) == (member, [2, 8])
        np.testing.assert_allclose(np.reshape(output["data"], (2, 8)), expected, atol=1e-5)
        assert len(answer["parameters"]["trace_id"]) == 32


def test_pixels_as_json_numbers(server):
    pixels = grey(250)
    tensor = {"name": "pixels", "datatype": "UINT8", "shape": [1, 32, 32, 3], "data": pixels.tolist()}
    outputs = [{"name": "probabilities", "parameters": {"classification": 1}}]
    url = f"{server.url}/v2/models/brightness/infer"
    answer = httpx.post(url, json={"inputs": [tensor], "outputs": outputs}).json()
    assert answer["outputs"][0]["data"][0].endswith(":7:level7")
    for data in ([256] * 3072, [0.5] * 3072, ["1"] * 3072, [1] * 3071, [[1], [1, 2]], [None] * 3072, [2**70] * 3072):
        refused = httpx.post(url, json={"inputs": [{**tensor, "data": data}]})
        assert (refused.status_code, refused.json()["error"].partition(":")[0]) == (422, "invalid_parameter")


def test_over_grpc(server):
    pixels = grey(10, 250)
    request = pb.ModelInferRequest(model_name="brightness", raw_input_contents=[pixels.tobytes()])
    request.inputs.add(name="pixels", datatype="UINT8", shape=pixels.shape)
    with grpc.insecure_channel(server.grpc) as channel:
        stub = GRPCInferenceServiceStub(channel)
        raw = stub.ModelInfer(request)
        received = np.frombuffer(raw.raw_output_contents[0], np.float32).reshape(2, 8)
        np.testing.assert_allclose(received, looked(10, 250), atol=1e-5)
        del request.raw_input_contents[:]
        request.inputs[0].contents.uint_contents.extend(pixels.ravel().tolist())
        typed = stub.ModelInfer(request).outputs[0].contents.fp32_contents
        np.testing.assert_allclose(typed, received.ravel(), atol=1e-6)
        request.inputs[0].shape[:] = [2, 32, 32, 4]
        with pytest.raises(grpc.RpcError) as caught:
            stub.ModelInfer(request)
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize(
    ("pixels", "changes"),
    [
        (grey(1, size=31), {}),
        (grey(1)[0], {}),
        (grey(1), {"shape": [2, 32, 32, 3]}),
        (grey(1), {"shape": [-1, 32, 32, 3]}),
        (grey(1), {"shape": [10**9, 10**9, 10**9, 10**9]}),
        (grey(1), {"shape": [True, 32, 32, 3]}),
        (grey(1), {"datatype": "FP32"}),
        (grey(1), {"name": "image"}),
        (grey(*range(65)), {}),
        (np.empty((0, 32, 32, 3), np.uint8), {}),
    ],
)
def test_pixels_that_are_not_the_members(server, pixels, changes):
    answer = infer(server, "brightness", pixels, **changes)
    assert (answer.status_code, answer.json()["error"].partition(":")[0]) == (422, "invalid_parameter")


def test_many_at_once_are_batched_and_not_mixed_up(server):
    levels = [2 + 4 * i for i in range(64)]
    with ThreadPoolExecutor(32) as pool:
        answers = list(pool.map(lambda level: infer(server, "brightness", grey(level)).json(), levels))
    winners = [int(np.argmax(answer["outputs"][0]["data"])) for answer in answers]
    assert winners == [level // 32 for level in levels]

    def counted():
        [model] = httpx.get(f"{server.url}/v2/models/brightness/stats").json()["model_stats"]
        return model

    assert eventually(lambda: counted()["inference_count"] >= 64)
    assert counted()["execution_count"] < counted()["inference_count"]
