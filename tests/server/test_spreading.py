"""Several replicas of the ingress: one gRPC connection gives each its share, and what one is told the others know."""

import os
from collections import Counter
from pathlib import Path

import grpc
import httpx
import pytest
from ray import serve

from ensemble_serving.protocol import inference_pb2 as pb
from tests import pictures
from tests.server.clients import Grpc
from tests.server.receiver import Receiver
from tests.server.server import Server, config, eventually, scrape

REQUESTS = 200


@pytest.fixture(scope="module")
def traced(repository):
    """A server of two ingress replicas whose traces go to a receiver: (server, receiver)."""
    with Receiver() as receiver:
        environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.grpc_url, "OTEL_BSP_SCHEDULE_DELAY": "200"}
        memory = {"shared_memory_prefix": "es-test"}
        two = {"Ingress": {"num_replicas": 2}}
        content = config(repository, "inline", deployments=two, ingress=memory, feedback={"max_requests": 1000})
        content["grpc_options"]["grpc_servicer_functions"] = ["deployments.protocol.services.add_open_inference"]
        with Server(content, **environment) as server:
            yield server, receiver


def both_run():
    states = serve.status().applications["ensemble"].deployments["Ingress"].replica_states
    return states.get("RUNNING") == 2


def test_one_grpc_connection_is_spread_evenly(traced):
    server, receiver = traced
    with server.driver():
        assert eventually(both_run)
    client = Grpc(server)
    picture = pictures.jpeg()
    # HAProxy learns of the second replica a moment after Serve does.
    assert eventually(lambda: client.classify(picture)[0] == "ok" and len(replicas(receiver)) == 2)
    before = replicas(receiver)
    for _ in range(REQUESTS):
        assert client.classify(picture)[0] == "ok"
    client.close()
    assert eventually(lambda: sum((replicas(receiver) - before).values()) >= REQUESTS)
    counts = (replicas(receiver) - before).values()
    assert len(counts) == 2
    assert min(counts) >= 0.4 * REQUESTS


def replicas(receiver):
    """How many requests each process has answered."""
    return Counter(span.resource["process.pid"] for span in receiver.spans if span.name == "classify")


def test_a_region_of_shared_memory_is_known_to_every_replica(traced):
    server, receiver = traced
    picture = pictures.jpeg()
    element = len(picture).to_bytes(4, "little") + picture
    path = Path(f"/dev/shm/es-test-{os.getpid()}-spread")
    path.write_bytes(element)
    client = Grpc(server)
    request = pb.ModelInferRequest(model_name="ensemble")
    tensor = request.inputs.add(name="image", datatype="BYTES", shape=[1])
    tensor.parameters["shared_memory_region"].string_param = "picture"
    tensor.parameters["shared_memory_byte_size"].int64_param = len(element)
    try:
        region = f"{server.url}/v2/systemsharedmemory/region/picture"
        registration = {"key": path.name, "byte_size": len(element)}
        assert httpx.post(f"{region}/register", json=registration).status_code == 200
        before = replicas(receiver)
        for _ in range(20):
            assert client.stub.ModelInfer(request, timeout=60).raw_output_contents
        assert eventually(lambda: sum((replicas(receiver) - before).values()) >= 20)
        assert len(replicas(receiver) - before) == 2
        assert httpx.post(f"{region}/unregister").status_code == 200
        for _ in range(20):
            with pytest.raises(grpc.RpcError, match="no region"):
                client.stub.ModelInfer(request, timeout=60)
    finally:
        client.close()
        path.unlink()


def test_a_label_is_taken_whichever_replica_it_comes_to(traced):
    server, receiver = traced
    before = replicas(receiver)
    numbers = [f"picture {number}" for number in range(20)]
    for number in numbers:
        headers = {"Content-Type": "image/jpeg", "X-Request-Id": number}
        answer = httpx.post(f"{server.url}/classify", content=pictures.jpeg(), headers=headers, timeout=60)
        assert answer.status_code == 200
    assert eventually(lambda: sum((replicas(receiver) - before).values()) >= 20)
    assert len(replicas(receiver) - before) == 2

    def label(number):
        told = {"request_id": number, "label": "level1"}
        return httpx.post(f"{server.url}/feedback", json=told, timeout=60).status_code

    assert [label(number) for number in numbers] == [200] * 20
    # The other replica gets about half of these, too.
    assert [label(number) for number in numbers] == [409] * 20
    assert label("a picture that nobody sent") == 404

    def results():
        counts = Counter()
        for labels, value in scrape(server, "ray_ensemble_feedback_labels_total"):
            counts[labels["result"]] += value
        return counts

    assert eventually(lambda: results() == {"accepted": 20, "already_labelled": 20, "unknown_request": 1}), results()
