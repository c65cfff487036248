import json
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import yaml

from ensemble_capacity.load.records import SHED
from graph.config import parse
from lab.experiments import overload
from lab.experiments.overload import SETUPS, summary
from packages.capacity.tests.load.loads import made
from scripts.shipped import shipped
from tests.local_servers import HttpServer, Reply


@pytest.mark.parametrize("name", SETUPS)
def test_a_setup_is_a_configuration(name):
    system, edit = SETUPS[name]
    config = yaml.safe_load(shipped(system.file or "configs/colocated.yaml").read_text())
    edit(config)
    args = parse(config["applications"][0]["args"])
    ensemble = args.ensemble
    assert args.ingress.max_batch_size == overload.LARGEST_BATCH
    assert (ensemble.cascade is not None) == (name != "both members")
    assert (ensemble.under_load is not None) == ("for load" in name)


def test_each_setup_is_sent_as_much_more_than_the_first_can_answer(tmp_path, monkeypatch, draw, capsys):
    sent, answers = [], [{"requests_per_s": rate} for rate in (80.0, 100.0, 90.0, 70.0, 60.0, 50.0)]

    @contextmanager
    def running(*_):
        yield SimpleNamespace(load=lambda *_: answers.pop(0))

    def overloaded(images, rate, seconds):
        sent.append((len(images), rate, seconds))
        # The second one refuses, the third asks fewer.
        refused, eased = len(sent) == 2, len(sent) == 3
        load = made(
            *(
                (n / 10, n / 10, n / 10 + 0.1, 503 if refused and n % 2 else 200, (n % 4 > 0) + SHED * eased)
                for n in range(20)
            )
        )
        return {**summary(load), "eased_until_s": 0.0, "by_second": [summary(load)] * 2}

    monkeypatch.setattr(overload, "running", running)
    monkeypatch.setattr(overload, "overloaded", overloaded)
    monkeypatch.setattr(overload, "set_up", lambda: None)
    monkeypatch.setattr(overload, "workload", lambda *_: None)
    files = {flag: tmp_path / f"told.{flag}" for flag in ("json", "markdown")}
    flags = [text for flag, file in files.items() for text in (f"--{flag}", str(file))]
    overload.main(["--data", str(draw({"cat": 2, "dog": 1})), "--seconds", "2", *flags])
    assert sent == 4 * [(3, 150.0, 2)]
    told = json.loads(files["json"].read_text())
    assert [told[name] for name in ("rate", "answered_before", "answered_after")] == [150, 100, 70]
    assert [told[name]["refused"] for name in SETUPS] == [0, 10, 0, 0]
    assert [told[name]["eased"] for name in SETUPS] == [0, 0, 1, 0]
    assert files["markdown"].read_text().splitlines()[3].startswith("| the cascade | 20 | 10 | 0 |")
    assert "1.5 times what both members answer" in capsys.readouterr().out


def test_what_comes_back_is_told_second_by_second_and_when_the_load_is_forgotten(monkeypatch):
    def answer(asked):
        body = json.dumps({"label": "cat", "eased": asked.number < 20}).encode()
        return Reply(503 if asked.number % 5 == 4 else 200, body)

    monkeypatch.setattr(overload, "AFTER_S", 0.2)
    with HttpServer(answer) as server:
        monkeypatch.setattr(overload, "HTTP_PORT", server.port)
        told = overload.overloaded([(b"a", "cat"), (b"b", "dog")], 100.0, 2.0)
    assert told["sent"] + told["after"]["sent"] == len(server.asked)
    assert told["sent"] == sum(second["sent"] for second in told["by_second"]) > 120
    assert told["answered"] + told["refused"] == told["sent"]
    assert told["refused"] == pytest.approx(told["sent"] / 5, abs=2)
    assert 30 < told["top1"] < 70
    assert 0 < told["eased"] < 0.3
    assert (told["eased_until_s"], told["after"]["eased"]) == (0.0, 0.0)


def test_of_a_second_without_an_answer_no_latency_is_told():
    assert summary(made((0.5, 0.5, 0.6, 503, 0)))["p50_ms"] is None
