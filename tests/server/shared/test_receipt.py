"""Receipts by every protocol, and that they sum to what the processes have used."""

import json
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import psutil
import pytest

from ensemble_serving.protocol import inference_pb2 as pb
from tests.levels import level
from tests.server.clients import Grpc
from tests.server.server import post
from tests.server.shared.servers import only

pytestmark = only(2)

NODES = ["decode", "predict one", "predict six", "predict brightness", "combine", "label", "ingress"]
REQUESTS, CLIENTS = 600, 6


def ensemble(server, parameters, **headers):
    inputs = [{"name": "image", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": 4 + len(IMAGE)}}]
    head = json.dumps({"inputs": inputs, "parameters": parameters}).encode()
    headers["Inference-Header-Content-Length"] = str(len(head))
    body = head + len(IMAGE).to_bytes(4, "little") + IMAGE
    answer = httpx.post(f"{server.url}/v2/models/ensemble/infer", content=body, headers=headers, timeout=60)
    return answer.json()["parameters"]


IMAGE = level(250)


def nodes(receipt):
    assert (receipt["batch_size"], receipt["position"]) == (1, 0)
    assert all(each["cpu_ms"] >= 0 and each["bytes_in"] > 0 for each in receipt["nodes"])
    return [each["node"] for each in receipt["nodes"]]


def test_every_protocol_asks_for_a_receipt_in_its_way(server, handle):
    assert "receipt" not in post(server, IMAGE).json()
    assert nodes(post(server, IMAGE, receipt="true").json()["receipt"]) == NODES
    asking = {"Ensemble-Options": "receipt=true"}
    answer = httpx.post(f"{server.url}/classify", content=IMAGE, headers=asking, timeout=60)
    assert nodes(answer.json()["receipt"]) == NODES
    for parameters, headers in (({"receipt": True}, {}), ({}, asking)):
        [classification] = json.loads(ensemble(server, parameters, **headers)["classifications"])
        assert nodes(classification["receipt"]) == NODES
    assert "classifications" not in ensemble(server, {})
    client = Grpc(server)
    request = pb.ModelInferRequest(model_name="ensemble")
    request.inputs.add(name="image", datatype="BYTES", shape=[1]).contents.bytes_contents.append(IMAGE)
    request.parameters["receipt"].bool_param = True
    [classification] = json.loads(client.stub.ModelInfer(request).parameters["classifications"].string_param)
    assert nodes(classification["receipt"]) == NODES
    client.close()
    receipt = handle.classify.remote(IMAGE, receipt=True).result(timeout_s=60).receipt
    assert [each.node for each in receipt.nodes] == NODES


def test_a_member_that_is_asked_by_itself_gives_one_too(server):
    pixels = np.zeros((1, 32, 32, 3), np.uint8)
    tensor = {"name": "pixels", "datatype": "UINT8", "shape": [1, 32, 32, 3], "data": pixels.ravel().tolist()}
    body = {"inputs": [tensor], "parameters": {"receipt": True}}
    answer = httpx.post(f"{server.url}/v2/models/one/infer", json=body, timeout=60).json()
    [classification] = json.loads(answer["parameters"]["classifications"])
    assert nodes(classification["receipt"]) == ["predict one", "ingress"]


def used_s(server):
    """The CPU time that the replicas have used, and their processes that decode, seconds."""
    used = []
    for process in psutil.process_iter():
        try:
            where = process.environ().get("RAY_TMPDIR")
            if "ServeReplica:ensemble" in " ".join(process.cmdline()) and where == str(server.folder):
                used += [each.cpu_times() for each in (process, *process.children())]
        except psutil.Error:
            continue
    assert used
    return sum(times.user + times.system for times in used)


def test_receipts_sum_to_what_the_processes_have_used(server):
    with ThreadPoolExecutor(CLIENTS) as pool, httpx.Client(base_url=server.url, timeout=60) as client:

        def ask(_):
            return client.post("/classify", content=IMAGE, params={"receipt": "true"}).json()["receipt"]

        list(pool.map(ask, range(CLIENTS * 5)))
        before = used_s(server)
        receipts = list(pool.map(ask, range(REQUESTS)))
        used = used_s(server) - before
    told = sum(each["cpu_ms"] for receipt in receipts for each in receipt["nodes"]) / 1000
    assert told == pytest.approx(used, rel=0.1)
