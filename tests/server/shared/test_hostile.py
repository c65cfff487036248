"""Some of the inputs that `ensemble faults fuzz` sends by the thousand."""

import httpx
import pytest

from lab.faults.fuzz.command import Corpus
from lab.faults.fuzz.runner import Bystander, Runner, Sender
from tests import pictures

SEED, INPUTS, AT_ONCE, LARGEST = 20, 128, 16, 2**16
# gRPC answers them before they reach ours: see lab/faults/README.md.
OTHERS = (("gRPC messages", "random bytes"), ("gRPC messages", "damaged"))
# Serve's own proxy answers 500 to a valid upgrade to WebSockets, because the application has none.
BY_SERVE = (("HTTP", "upgrades"), ("HTTP", "upgrades of images"))


@pytest.fixture(scope="module")
def runner(server):
    address = httpx.URL(server.url)
    with Bystander(server.url, pictures.jpeg()) as bystander:
        yield Runner(Sender(address.host, address.port, server.grpc_port), bystander)


@pytest.fixture(scope="module")
def rows(server, runner):
    corpus = Corpus(httpx.get(f"{server.url}/openapi.json").json(), SEED, largest=LARGEST)
    volleys = [range(first, first + AT_ONCE) for first in range(0, INPUTS, AT_ONCE)]
    return [row for volley in volleys for row in runner.volley({number: corpus.made(number) for number in volley})]


def test_hostile_input_is_refused_and_others_are_answered(runner, rows, request):
    _, _, front = request.node.callspec.params["server"]
    others = OTHERS + BY_SERVE if front == "serve" else OTHERS
    assert len(rows) == INPUTS
    assert len(runner.bystander.records()) > INPUTS // AT_ONCE
    failed = [row for row in rows if row["failure"] and (row["family"], row["kind"]) not in others]
    assert [f"{row['family']}: {row['kind']}: {row['failure']}" for row in failed] == []
