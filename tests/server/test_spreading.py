"""One gRPC connection, several replicas of the ingress: each gets its share."""

from collections import Counter

import pytest
from ray import serve

from tests import pictures
from tests.server.clients import Grpc
from tests.server.receiver import Receiver
from tests.server.server import Server, config, eventually

REQUESTS = 200


@pytest.fixture
def traced(repository):
    """A server of two ingress replicas whose traces go to a receiver: (server, receiver)."""
    with Receiver() as receiver:
        environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.grpc_url, "OTEL_BSP_SCHEDULE_DELAY": "200"}
        content = config(repository, "inline", deployments={"Ingress": {"num_replicas": 2}})
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
