"""One process of a server is killed, or frozen, under load: no request fails, and all is as before afterwards."""

import signal

import httpx
import psutil
import pytest

from scripts.serve.api import ServeApi
from scripts.serve.server import HEALTHY
from tests.levels import level
from tests.server.load import CLIENTS, Load, replicas
from tests.server.server import Server, config, eventually, post

INGRESSES = 2
FAULTS = pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "frozen"])


@pytest.fixture(scope="module")
def server(repository):
    """A server whose configuration is like the default one: two replicas of the ingress, and one of each node."""
    two = {"Ingress": {"num_replicas": INGRESSES}}
    content = config(repository, "separate", members=("one", "brightness"), ensemble={"quorum": 1}, deployments=two)
    with Server(content) as running:
        yield running


def brightest(server):
    """The answer to a picture that only one of the members knows, without what differs from one to the next."""
    return {name: value for name, value in post(server, level(250)).json().items() if name in {"label", "missing"}}


def is_whole(server):
    try:
        return "missing" not in brightest(server)
    except httpx.TransportError:
        return False


def proxies(server):
    return [each for each in psutil.Process(server.process.pid).children() if each.name() == "haproxy"]


def put_right(server, find, victim, count=1):
    """Wait until another process is there in place of one, which has ended, and every answer is whole."""
    assert eventually(lambda: len(now := find()) == count and victim not in now, 120), find()
    assert eventually(ServeApi(server.told("RAY_DASHBOARD_ADDRESS")).are_healthy, 60)
    assert eventually(lambda: is_whole(server), 60)


# Of members: tests/core/test_degraded.py. A frozen combiner: below.
@pytest.mark.parametrize(
    ("name", "fault"),
    [("JpegTransformer", signal.SIGKILL), ("JpegTransformer", signal.SIGSTOP), ("Combiner", signal.SIGKILL)],
)
def test_the_only_replica_of_a_node(server, name, fault):
    [victim] = replicas(server, name)
    before = brightest(server)
    with Load(server) as load:
        victim.send_signal(fault)
        count = sum(load.statuses.values())
        # More than what was on its way.
        assert eventually(lambda: sum(load.statuses.values()) > count + 3 * CLIENTS)
        put_right(server, lambda: replicas(server, name), victim)
    assert load.statuses.keys() == {200}, load.statuses
    assert {member for member, _ in load.missing} <= {name}
    assert brightest(server) == before


@FAULTS
def test_a_replica_of_the_ingress(server, fault):
    victim, _ = replicas(server, "Ingress")
    with Load(server) as load:
        victim.send_signal(fault)
        put_right(server, lambda: replicas(server, "Ingress"), victim, INGRESSES)
    assert load.statuses.keys() == {200}, load.statuses


@FAULTS
def test_haproxy(server, fault):
    [victim] = proxies(server)
    with Load(server) as load:
        victim.send_signal(fault)
        put_right(server, lambda: proxies(server), victim)
    assert load.statuses[200] > CLIENTS
    # What it had taken, and what came until another one knew the replicas.
    assert load.statuses.keys() <= {200, 503, None}


def test_the_recovery_is_printed(server):
    [victim] = replicas(server, "Labeler")
    victim.kill()
    # What is logged again within a minute is printed once.
    assert eventually(lambda: "are UNHEALTHY" in server.log(), 60)
    assert eventually(lambda: server.log().rfind(HEALTHY) > server.log().rindex("are UNHEALTHY"), 60)
    put_right(server, lambda: replicas(server, "Labeler"), victim)


def test_live_settings_hold_while_the_ingress_does_a_nodes_work(server):
    server.reconfigure({"weights": {"one": 1.0, "brightness": 0.0}}, "Combiner")
    assert eventually(lambda: brightest(server)["label"] == "level1", 30)
    [victim] = replicas(server, "Combiner")
    with Load(server) as load:
        victim.suspend()
        for _ in range(5):
            assert brightest(server) == {"label": "level1"}
        put_right(server, lambda: replicas(server, "Combiner"), victim)
    assert load.statuses.keys() == {200}, load.statuses
