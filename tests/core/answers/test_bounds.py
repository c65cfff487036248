"""An image waits within bounds over HTTP, gRPC and a handle: its deadline, the places, and its client."""

import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.levels import level
from tests.server.clients import Grpc, Handle, Http, assert_error
from tests.server.server import eventually, post, scrape
from tests.server.shared.servers import only

pytestmark = only(1)


@pytest.fixture(scope="module")
def waiting(server):
    """A server in which a lone image waits 4 s for others, and a third image finds no room."""
    # A deadline of half that time tells which settings are in force.
    tried = {"timeout_ms": 2000}
    server.reconfigure({"batch_wait_ms": 4000, "max_in_flight": 2})
    assert eventually(lambda: post(server, level(1), **tried).status_code == 504)
    yield server
    server.reconfigure({})
    assert eventually(lambda: post(server, level(1), **tried).status_code == 200)


@pytest.fixture(scope="module")
def clients(waiting, handle):
    made = [Http(waiting), Grpc(waiting), Handle(handle)]
    yield made
    for client in made:
        client.close()


def test_a_client_that_leaves_is_worked_for_no_more(waiting):
    def cancelled():
        samples = scrape(waiting, "ray_ensemble_requests_total")
        return sum(value for labels, value in samples if labels["outcome"] == "cancelled")

    before = cancelled()
    with pytest.raises(httpx.ReadTimeout), httpx.Client() as client:
        client.post(f"{waiting.url}/classify", content=level(1), timeout=httpx.Timeout(1, connect=30))
    assert eventually(lambda: cancelled() == before + 1, seconds=60)


def test_a_deadline(clients):
    for client in clients:
        assert_error(client.classify(level(1), timeout_ms=200), "deadline_exceeded")


def test_an_overload(clients, waiting):
    def until_admitted():
        while (answer := post(waiting, level(250))).status_code == 503:
            time.sleep(0.01)
        return answer

    with ThreadPoolExecutor(2) as pool:
        admitted = [pool.submit(until_admitted) for _ in range(2)]
        # Until both are in: what is admitted meanwhile, in the place of one of them, leaves at once, past its deadline.
        assert eventually(lambda: post(waiting, level(1), timeout_ms=1).status_code == 503)
        for client in clients:
            assert_error(client.classify(level(1)), "overloaded")
        refused = post(waiting, level(1))
        # At once: those that were admitted still wait.
        assert not any(future.done() for future in admitted)
        assert refused.status_code == 503
        # Two images in 4 s are a pace of their own, if it was measured before.
        assert 1 <= int(refused.headers["Retry-After"]) <= 30
        assert [future.result().status_code for future in admitted] == [200, 200]
