"""One process of a server is killed, or frozen, under load: no request fails, and all is as before afterwards."""

import resource
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import psutil
import pytest

from scripts.serve.api import ServeApi
from scripts.serve.cluster import MARK
from scripts.serve.server import HEALTHY
from tests.server.load import CLIENTS, Load, replicas
from tests.server.server import Server, config, eventually, post
from tests.server.shared.test_http import level

INGRESSES = 2
NODES = ("JpegTransformer", "one", "Combiner", "Labeler")
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


@FAULTS
@pytest.mark.parametrize("name", NODES)
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
    victim.suspend()
    for _ in range(5):
        assert brightest(server) == {"label": "level1"}
    put_right(server, lambda: replicas(server, "Combiner"), victim)


def started_by(server):
    """The processes that a server has started, which it need not be there for."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK, "").startswith(f"{server.process.pid}@"):
                found.append(process)
        except psutil.Error:
            continue
    return found


def test_a_killed_server_leaves_nothing_and_a_deploy_says_that_it_has_ended(repository):
    """Last: the servers of other tests are not affected."""
    other = Server(config(repository, "inline"))
    other.__enter__()
    try:
        assert {"haproxy", "raylet", "gcs_server"} <= {each.name() for each in started_by(other)}
        other.process.kill()
        assert eventually(lambda: not started_by(other), 60), started_by(other)
        command = [Path(sys.executable).with_name("ensemble"), "deploy", other.folder / "config.yaml"]
        done = subprocess.run(command, env=other.environment, capture_output=True, text=True, timeout=60)
        assert (done.returncode, "the server has ended" in done.stderr) == (1, True), done
    finally:
        other.process.wait(30)
        other.remove()


def test_a_low_soft_limit_of_open_files_is_raised(repository):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        with Server(config(repository, "inline")) as started:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            [ingress] = replicas(started, "Ingress")
            assert ingress.rlimit(resource.RLIMIT_NOFILE)[0] > 256
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
