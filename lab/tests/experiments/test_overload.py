import asyncio
import json
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import yaml

from graph.config import parse
from lab.experiments import overload
from lab.experiments.overload import SETUPS, summary
from packages.capacity.tests.load.loads import made
from scripts.shipped import shipped
from tests.local_servers import HttpServer, Reply


@pytest.mark.parametrize("name", SETUPS)
def test_a_setup_is_a_configuration(name):
    system, edit = SETUPS[name]
    file = "configs/photographs.yaml" if system.name == "cascade" else f"configs/{system.name}.yaml"
    config = yaml.safe_load(shipped(file).read_text())
    edit(config)
    ensemble = parse(config["applications"][0]["args"]).ensemble
    assert (ensemble.field("cascade") is not None) == (name != overload.FULL)
    assert (ensemble.field("under_load") is not None) == ("for load" in name)


def test_each_setup_is_sent_multiples_of_what_all_members_can_answer(monkeypatch, tmp_path):
    sent, answers = [], [{"requests_per_s": rate} for rate in (80.0, 100.0, 90.0)]
    for name in ("b", "a"):
        (tmp_path / "photos").mkdir(exist_ok=True)
        (tmp_path / "photos" / name).write_bytes(name.encode())

    @contextmanager
    def running(*_):
        yield SimpleNamespace(load=lambda *_: answers.pop(0))

    def overloaded(images, rate, seconds):
        sent.append((images, rate, seconds))
        return {**summary(made(*((n / 10, n / 10, n / 10 + 0.1, 503 if n % 2 else 200, 0) for n in range(20))))}

    async def answered(images):
        return ["cat", "dog"]

    monkeypatch.setenv("ENSEMBLE_DATA", str(tmp_path))
    monkeypatch.setattr(overload, "running", running)
    monkeypatch.setattr(overload, "overloaded", overloaded)
    monkeypatch.setattr(overload, "answered", answered)
    monkeypatch.setattr(overload, "workload", lambda *_: None)
    rows = overload.shown(list(overload.every_setup(2)))
    images = [(b"a", "cat"), (b"b", "dog")]
    assert sent == 3 * [(images, 150.0, 2), (images, 300.0, 2)]
    assert [(row["setup"], row["times"]) for row in rows] == [(name, times) for name in SETUPS for times in (1.5, 3)]
    assert [row["share"] for row in rows] == 6 * [50.0]


def test_labels_come_from_a_server_in_the_order_of_the_images(monkeypatch):
    def answer(asked):
        rest = {"index": 0, "probability": 1.0, "top": [], "model_versions": {}, "trace_id": "0" * 32}
        return Reply(200, json.dumps({"label": asked.body.decode(), **rest}).encode())

    with HttpServer(answer) as server:
        monkeypatch.setitem(overload.URLS, "http", server.url)
        found = asyncio.run(overload.answered([b"a", b"b", b"c"]))
    assert found == ["a", "b", "c"]


def test_what_comes_back_is_told_and_when_the_load_is_forgotten(monkeypatch):
    def answer(asked):
        body = json.dumps({"label": "cat", "load_shed": asked.number < 20}).encode()
        return Reply(503 if asked.number % 5 == 4 else 200, body)

    monkeypatch.setattr(overload, "AFTER_S", 0.2)
    with HttpServer(answer) as server:
        monkeypatch.setitem(overload.URLS, "http", server.url)
        told = overload.overloaded([(b"a", "cat"), (b"b", "dog")], 100.0, 2.0)
    assert 120 < told["sent"] < len(server.asked)
    assert told["failed"] == 0
    assert told["refused"] == pytest.approx(told["sent"] / 5, abs=2)
    assert 30 < told["alike"] < 70
    assert 0 < told["shed"] < 30
    assert told["shed_until_s"] == 0.0


def test_of_a_second_without_an_answer_no_latency_is_told():
    assert summary(made((0.5, 0.5, 0.6, 503, 0)))["p50_ms"] is None
