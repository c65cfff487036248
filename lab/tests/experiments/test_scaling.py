from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import yaml

from graph.config import parse
from lab import reported
from lab.benchmark.workloads import Workload
from lab.experiments import scaling
from lab.experiments.scaling import SCALING, Size, parts
from scripts.errors import ScriptError
from scripts.shipped import shipped


@pytest.fixture(autouse=True)
def two_cores(monkeypatch):
    monkeypatch.setattr(scaling, "available_cpus", lambda: 2)
    monkeypatch.setattr(scaling, "usable", lambda: (0, 1))


def test_every_size_is_there_once():
    assert len({part.name for part in parts(1.0)}) == 4


@pytest.mark.parametrize(("size", "cpus"), [(Size(1, 1), (0,)), (Size(2, 1), None), (Size(2, 2), "auto")])
def test_a_size_is_a_configuration(size, cpus):
    config = yaml.safe_load(shipped("configs/colocated.yaml").read_text())
    size.edit(config)
    application = config["applications"][0]
    assert parse(application["args"]).cpus == cpus
    assert application["deployments"][0]["num_replicas"] == size.replicas


@pytest.fixture
def rows(tmp_path, monkeypatch):
    """One client gets 100 requests/s, and two cores hold 400; the server with two cores and two replicas fails."""
    image = tmp_path / "image.jpg"
    image.write_bytes(bytes(12_500))
    now = []

    @contextmanager
    def running(system, load, edit, machine=None):
        now[:] = [edit.__self__]
        if now[0] == Size(2, 2):
            raise ScriptError("no\nroom")
        yield SimpleNamespace(load=answered)

    def answered(load, protocol, clients, seconds):
        rate = min(100.0 * clients, 200.0 * now[0].cores)
        return {"requests": 1000, "requests_per_s": rate, "p50_ms": 1.0, "p99_ms": 2.0}

    @contextmanager
    def network(count):
        yield ["client", "server"][:count]

    def across(client, server, load, clients, seconds):
        return {**answered(load, "http", clients, seconds), "wire_there": 44.0, "wire_back": 4.4}

    monkeypatch.setattr(scaling, "network", network)
    monkeypatch.setattr(scaling, "across", across)
    monkeypatch.setattr(scaling, "running", running)
    monkeypatch.setattr(scaling, "workload", lambda *_: Workload("imagenet", tmp_path, 2, (), None))
    monkeypatch.setattr(scaling, "photographs", lambda _: (image,))
    return SCALING.summary([row for part in parts(1.0) for row in part.rows()])


def test_what_cores_add_is_compared(rows):
    found = SCALING.compare(rows)
    assert set(found) == {each.subject for each in reported.of("scaling")}
    assert found["highest rate of linear scaling by added machines"].startswith(
        "400 requests/s with 2 cores, 100 % of 2 times one core's"
    )
    assert found["traffic of about 900 images per second"].endswith("so 99 Mb/s at 900")
    assert found["clients per pod at which throughput levels off"].startswith("4 per replica")


def test_the_table_has_what_was_measured(rows):
    made = SCALING.table(rows)
    # Each size that was measured, with all loads, and the failed one.
    assert [line[:3] for line in made.lines] == [["1", "1", "1"], ["1", "2", "1"], ["2", "2", "1"], ["1", "2", "2"]]
    assert made.lines[1][3:8] == ["100", "200", "400", "400", "400"]
    assert made.lines[1][8:] == ["1.0", "1.0", "2.0"]
    assert made.notes[0].endswith("room")


def test_the_wire_of_clients_elsewhere_is_stored(rows):
    [across] = [row for row in rows if row["machines"] == 2 and row["clients"] == 4]
    assert (across["requests_per_s"], across["megabits_per_s"]) == (400.0, pytest.approx(40.0))
    assert (across["wire_there"], across["wire_back"]) == (44.0, 4.4)


def test_the_wire_is_what_the_servers_interface_counts_in_the_middle_of_the_load():
    class Interface:
        def __init__(self):
            self.seen = iter([0, 60_000, 100_000, 200_000, 1_450_000])

        def traffic(self):
            received = next(self.seen)
            return received, received // 10

    there, back = scaling._wire(Interface(), SimpleNamespace(poll=lambda: None), 0.2)
    assert there == pytest.approx(10 * back)
    # 10 Mb within half of the load, or somewhat longer.
    assert 0 < there <= 10 / 0.1


def test_without_root_the_clients_elsewhere_are_a_row_with_the_reason(monkeypatch):
    monkeypatch.setattr("lab.network.can_make", lambda: False)
    [row] = parts(1.0)[-1].rows()
    assert "need root and iproute2" in row["error"]


def test_nothing_measured_compares_nothing():
    assert SCALING.compare([{"cores": 1, "replicas": 1, "clients": 0, "error": "no"}]) == {}
