import json
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import yaml

from ensemble_models.dataset import Dataset
from graph.config import parse
from lab.experiments import overload
from lab.experiments.overload import SETUPS, summary
from packages.capacity.tests.load.loads import made
from scripts.shipped import shipped
from tests.local_servers import HttpServer, Reply


@pytest.mark.parametrize("name", SETUPS)
def test_a_setup_is_a_configuration(name):
    system, edit = SETUPS[name]
    config = yaml.safe_load(shipped(system.file or f"configs/{system.name}.yaml").read_text())
    edit(config)
    args = parse(config["applications"][0]["args"])
    ensemble = args.ensemble
    assert args.ingress.max_batch_size == overload.LARGEST_BATCH
    assert (ensemble.cascade is not None) == (name != "both members")
    assert (ensemble.under_load is not None) == ("for load" in name)


def test_each_setup_is_sent_as_much_more_than_the_first_can_answer(monkeypatch, draw):
    sent, answers = [], [{"requests_per_s": rate} for rate in (80.0, 100.0, 90.0)]

    @contextmanager
    def running(*_):
        yield SimpleNamespace(load=lambda *_: answers.pop(0))

    def overloaded(images, rate, seconds):
        sent.append((len(images), rate, seconds))
        return {**summary(made(*((n / 10, n / 10, n / 10 + 0.1, 503 if n % 2 else 200, 0) for n in range(20))))}

    monkeypatch.setattr(overload, "running", running)
    monkeypatch.setattr(overload, "overloaded", overloaded)
    monkeypatch.setattr(overload, "labelled", lambda: Dataset.open(draw({"cat": 2, "dog": 1})))
    monkeypatch.setattr(overload, "workload", lambda *_: None)
    rows = overload.shown(list(overload.every_setup(2)))
    assert sent == 4 * [(3, 150.0, 2)]
    assert [row["setup"] for row in rows] == list(SETUPS)
    assert [row["share"] for row in rows] == 4 * [50.0]


def test_what_comes_back_is_told_and_when_the_load_is_forgotten(monkeypatch):
    def answer(asked):
        body = json.dumps({"label": "cat", "eased": asked.number < 20}).encode()
        return Reply(503 if asked.number % 5 == 4 else 200, body)

    monkeypatch.setattr(overload, "AFTER_S", 0.2)
    with HttpServer(answer) as server:
        monkeypatch.setattr(overload, "HTTP_PORT", server.port)
        told = overload.overloaded([(b"a", "cat"), (b"b", "dog")], 100.0, 2.0)
    assert 120 < told["sent"] < len(server.asked)
    assert told["failed"] == 0
    assert told["refused"] == pytest.approx(told["sent"] / 5, abs=2)
    assert 30 < told["top1"] < 70
    assert 0 < told["shed"] < 30
    assert told["shed_until_s"] == 0.0


def test_of_a_second_without_an_answer_no_latency_is_told():
    assert summary(made((0.5, 0.5, 0.6, 503, 0)))["p50_ms"] is None
