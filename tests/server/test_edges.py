"""Direct edges on a real server: which way calls go, and what becomes of them as replicas come, go and die."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from deployments.rpc.wire import VERSION
from tests.levels import level
from tests.networks import heavy, store
from tests.server.load import Load, replicas
from tests.server.server import Server, config, eventually, post, scrape

NODES = ("JpegTransformer", "heavy", "Combiner", "Labeler")


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A repository of one member that takes milliseconds."""
    root = tmp_path_factory.mktemp("models")
    store(root, "heavy", heavy())
    return root


@pytest.fixture(scope="module")
def pairs(models):
    """A server with two replicas of every node."""
    deployments = {name: {"num_replicas": 2} for name in NODES}
    with Server(config(models, "separate", members=["heavy"], deployments=deployments)) as server:
        assert eventually(lambda: len(sockets(server)) == 2 * len(NODES), 90)
        yield server


def sockets(server):
    """Every socket of the server's direct edges."""
    return set(server.folder.rglob(f"*.{VERSION}"))


def calls(server):
    """How many calls went each way: {(node, edge): calls}."""
    return Counter({(s["node"], s["edge"]): value for s, value in scrape(server, "ray_ensemble_edge_calls_total")})


def test_calls_go_by_socket_and_metrics_say_so(pairs):
    assert post(pairs, level(10)).status_code == 200
    # The warm-up's calls went by handle: the replicas had not opened their sockets yet.
    assert eventually(lambda: calls(pairs)["Labeler", "direct"])
    before = calls(pairs)
    for _ in range(20):
        assert post(pairs, level(10)).status_code == 200
    assert eventually(lambda: (calls(pairs) - before)["heavy", "direct"] >= 20)
    grown = calls(pairs) - before
    assert {edge for _, edge in grown} == {"direct"}
    assert {node for node, _ in grown} == set(NODES)

    def opened():
        return {s["node"] for s, value in scrape(pairs, "ray_ensemble_edge_connections") if value >= 1}

    assert eventually(lambda: opened() == set(NODES)), opened()


def test_only_a_members_replica_loads_openvino(pairs):
    """What all have from the fork server, such as OpenCV, is in memory once."""

    def has_openvino(name):
        [first, _] = replicas(pairs, name)
        return any("/openvino/" in mapped.path for mapped in first.memory_maps())

    assert {name for name in NODES if has_openvino(name)} == {"heavy"}


def test_a_killed_replicas_batches_go_to_another(pairs):
    before = sockets(pairs)
    with Load(pairs) as load:
        for i, name in enumerate(NODES, start=1):
            victim = replicas(pairs, name)[0]
            victim.kill()
            assert eventually(
                lambda gone=victim, of=name: gone not in (now := replicas(pairs, of)) and len(now) == 2, 60
            )
            # A new socket has come, and what the dead one left is removed.
            assert eventually(lambda: len(sockets(pairs)) == len(before), 60)
            assert eventually(lambda i=i: len(sockets(pairs) & before) == len(NODES) * 2 - i, 60)
    assert set(load.statuses) == {200}


def test_replicas_come_and_go_under_load_and_nothing_is_lost(pairs):
    """Last: it changes the server."""
    options = pairs.content["applications"][0]["deployments"]
    scaled = next(option for option in options if option["name"] == "heavy")
    with Load(pairs) as load:
        for count in (3, 2):
            scaled["num_replicas"] = count
            pairs.deploy()
            expected = count + 2 * (len(NODES) - 1)
            assert eventually(lambda expected=expected: len(sockets(pairs)) == expected, 90)
        before = sockets(pairs)
        for option in options:
            if option["name"] in NODES:
                option["ray_actor_options"] = {"num_cpus": 0.11}
        pairs.deploy()
        assert eventually(lambda: not before & sockets(pairs), 180)
        assert eventually(lambda: len(sockets(pairs)) == 2 * len(NODES), 90)
    assert set(load.statuses) == {200}, load.statuses


def test_batches_that_serve_does_not_queue_are_refused_as_overload(models):
    """By handle Serve bounds how many wait for a node: `max_queued_requests`."""
    full = {"JpegTransformer": {"max_ongoing_requests": 1, "max_queued_requests": 1}}
    ingress = {"max_concurrent_batches": 16, "max_batch_size": 1}
    content = config(models, "separate", members=["heavy"], deployments=full, edges="handle", ingress=ingress)
    with Server(content) as server, ThreadPoolExecutor(32) as pool:
        answers = list(pool.map(lambda _: post(server, level(10)), range(200)))
        refused = [answer for answer in answers if answer.status_code != 200]
        assert 0 < len(refused) < 200
        assert {(each.status_code, each.json()["error"]["code"]) for each in refused} == {(503, "overloaded")}
        assert all(int(each.headers["Retry-After"]) >= 1 for each in refused)
        assert not any("Traceback" in log.read_text() for log in server.ray_logs("serve/replica_*Ingress*.log"))
