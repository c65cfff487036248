"""A cluster of up to three machines: what clients on a fourth see. Each test has the machines join that it needs."""

import time
from collections import Counter

import pytest

from lab.network import can_make, network
from tests import pictures
from tests.networks import heavy, store
from tests.server.cluster.cluster import Clients, Cluster, first_request, status_without_key
from tests.server.server import config, eventually, free_ports

pytestmark = pytest.mark.skipif(not can_make(), reason="makes network namespaces: needs root and iproute2")
CLIENTS, LOAD_S = 8, 3
# Small batches, so that many are counted.
BATCH = 2


@pytest.fixture(scope="module")
def machines():
    with network(4) as found:
        yield found


@pytest.fixture(scope="module")
def image(tmp_path_factory):
    path = tmp_path_factory.mktemp("image") / "image.jpg"
    path.write_bytes(pictures.jpeg())
    return path


@pytest.fixture(scope="module")
def cluster(machines, tmp_path_factory):
    """Two machines that answer; the configuration is for three."""
    repository = tmp_path_factory.mktemp("models")
    store(repository, "heavy", heavy(layers=4))
    each = {"num_replicas": 3, "max_replicas_per_node": 1}
    inline = {"placement": "inline"}
    content = config(
        repository,
        "separate",
        members=["heavy"],
        deployments={"Ingress": each, "heavy": each},
        ingress={"max_batch_size": BATCH},
        transformer=inline,
        combiner=inline,
        labeler=inline,
    )
    options = [o for o in content["applications"][0]["deployments"] if o["name"] in {"Ingress", "heavy"}]
    content["applications"][0]["deployments"] = options
    del content["http_options"]["host"]
    for protocol, port in zip(("http", "grpc"), free_ports(2), strict=True):
        content[f"{protocol}_options"]["port"] = port
    first, second, *_ = machines
    with Cluster(content, first) as running:
        running.join(second)
        yield running


def test_every_machine_answers_the_first_request(cluster, machines, image):
    *_, client = machines
    for machine in machines[:2]:
        status, answer = first_request(cluster, client, machine, image)
        assert (status, answer["label"].startswith("level")) == (200, True)
        assert status_without_key(cluster, client, machine) == 401


def test_calls_stay_on_their_machine_where_all_are_loaded_alike(cluster, machines, image):
    before = [cluster.calls(machine) for machine in machines[:2]]
    with Clients(cluster, machines[3], machines[:2], CLIENTS, image) as clients:
        time.sleep(LOAD_S)
    assert set(clients.seen["statuses"]) == {"200"}
    sent = clients.seen["statuses"]["200"]

    def calls():
        now = [cluster.calls(machine) for machine in machines[:2]]
        return [after - earlier for after, earlier in zip(now, before, strict=True)]

    # Ray exports what is counted every few seconds.
    assert eventually(lambda: sum(sum(each.values()) for each in calls()) >= sent / BATCH), (sent, calls())
    print(calls())
    together = sum(calls(), start=Counter())
    assert together["direct"] >= 0.95 * sum(together.values()), calls()


def test_a_machine_that_is_added_answers(cluster, machines, image):
    first, _, third, client = machines
    status, findings = cluster.doctor(third, "--join", first.address)
    assert ("ok", "cluster: code, models and their versions are the head's") in findings, findings
    assert status == 0, findings
    cluster.join(third)
    assert first_request(cluster, client, third, image)[0] == 200


def test_a_rolling_update_over_the_machines_loses_no_request(cluster, machines, image):
    first, second, third, client = machines
    cluster.join(third)
    with Clients(cluster, client, [first, second, third], CLIENTS, image) as clients:
        cluster.deploy({"labeler": {"placement": "inline", "top_k": 3}})
    # A machine without its ingress refuses for that time, and says when to come again.
    assert set(clients.seen["statuses"]) <= {"200", "503"}, clients.seen
    for machine in machines[:3]:
        status, answer = first_request(cluster, client, machine, image)
        assert (status, len(answer["top"])) == (200, 3)


def test_a_machine_that_is_cut_off_for_seconds_comes_back(cluster, machines, image):
    first, second, third, client = machines
    cluster.join(third)
    with Clients(cluster, client, [first, second], CLIENTS, image) as clients:
        third.cable("down")
        time.sleep(LOAD_S)
        third.cable("up")
        assert eventually(lambda: answers(cluster, client, third, image), 60)
        time.sleep(1)
    assert set(clients.seen["statuses"]) <= {"200", "degraded"}, clients.seen
    assert cluster.processes[third.address].poll() is None, cluster.log(third)


def answers(cluster, client, machine, image):
    """Whether a machine's entrance answers again."""
    try:
        return first_request(cluster, client, machine, image)[0] == 200
    except ValueError:
        return False


def test_a_machine_is_lost_under_load_and_clients_of_the_others_lose_nothing(cluster, machines, image):
    first, second, third, client = machines
    cluster.join(third)
    with Clients(cluster, client, [first, second], CLIENTS, image) as clients:
        time.sleep(1)
        third.kill()
        time.sleep(LOAD_S)
    assert set(clients.seen["statuses"]) == {"200"}, clients.seen
    assert cluster.processes.pop(third.address).wait(10) != 0


def test_a_machine_leaves_in_order_and_clients_of_another_lose_nothing(cluster, machines, image):
    first, second, _, client = machines
    with Clients(cluster, client, [first], CLIENTS, image) as clients:
        time.sleep(1)
        assert cluster.stop(second) == 0
        time.sleep(1)
    assert set(clients.seen["statuses"]) == {"200"}, clients.seen
