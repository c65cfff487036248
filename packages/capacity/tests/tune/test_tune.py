"""`ensemble tune`: what is tried, what is measured and chosen, what is written, and the exit status."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import click
import numpy as np
import pytest
import yaml

from ensemble_capacity.load.load import Closed
from ensemble_capacity.tune import __main__ as command
from ensemble_capacity.tune import search
from ensemble_capacity.tune.search import HELD, Candidate, Search, neighbours
from packages.capacity.tests.plan.profiles import ROOT, application
from scripts.configuration import check_arguments

CONFIG = {"applications": [application(max_batch_size=16, max_concurrent_batches=1)]}
FIRST = Candidate.first(CONFIG, {})


def test_a_candidate_is_a_whole_configuration_of_one_process():
    for file in ("configs/cluster.yaml", "serve_config.yaml", "configs/colocated.yaml"):
        [made] = replace(FIRST, replicas=2).config({"applications": [application(file)]})["applications"]
        [deployment] = made["deployments"]
        assert (deployment["name"], deployment["num_replicas"]) == ("Ingress", 2)
        assert not {"autoscaling_config", "max_replicas_per_node"} & {*deployment}
        nodes = [made["args"][name] for name in ("transformer", "combiner", "labeler")]
        assert {each["placement"] for each in (*nodes, *made["args"]["members"])} == {"inline"}


def test_settings_replace_those_that_were_there():
    config = {"applications": [application(batch_wait_ms=2, timeout_ms=900)]}
    changed = replace(FIRST, threads=2, batch_wait_ms=0, max_batch_size=4).config(config)["applications"][0]["args"]
    assert changed["ingress"] == {
        "timeout_ms": 900,
        "batch_wait_ms": 0,
        "max_batch_size": 4,
        "max_concurrent_batches": 1,
    }
    assert [member["threads"] for member in changed["members"]] == [2, 2]
    assert "threads" not in config["applications"][0]["args"]["members"][0]


def test_a_search_begins_with_the_batches_of_the_configuration_and_with_what_is_held():
    assert (FIRST.replicas, FIRST.max_batch_size, FIRST.max_concurrent_batches) == (1, 16, 1)
    assert Candidate.first(CONFIG, {"threads": 2}) == replace(FIRST, threads=2)


def test_the_nearest_values_of_a_setting_are_tried_first():
    assert neighbours(FIRST, "max_batch_size", 2) == ([32, 64], [8, 4, 2, 1])
    assert neighbours(FIRST, "replicas", 4) == ([2, 4], [])
    assert neighbours(FIRST, "threads", 4) == ([1], [4])
    assert neighbours(FIRST, "threads", 1) == ([1], [])


@pytest.mark.parametrize("name", HELD)
def test_each_candidate_is_a_configuration_that_can_be_served(name):
    above, below = neighbours(FIRST, name, 2)
    for value in (*above, *below):
        candidate = replace(FIRST, **{name: value})
        [served] = candidate.config(CONFIG)["applications"]
        config = check_arguments(served)
        assert config.ingress.max_batch_size == candidate.max_batch_size
        assert config.ingress.max_concurrent_batches == candidate.max_concurrent_batches
        assert served["deployments"][0]["num_replicas"] == candidate.replicas


class Machine:
    """Servers that hold a p99 of 80 ms up to a rate, by candidate; above it they answer little, and late."""

    def __init__(self, capacity, monkeypatch, answered=0.1):
        self.capacity, self.answered, self.sent, self.started = capacity, answered, [], []
        monkeypatch.setattr(search, "serving", self.serving)
        monkeypatch.setattr(search, "loaded", self.loaded)

    @contextmanager
    def serving(self, config, cores):
        [served] = config["applications"]
        check_arguments(served)
        self.started.append(served["args"])
        yield "http://there"

    def loaded(self, url, images, load, seconds):
        seed, rate = (0, 1e6) if isinstance(load, Closed) else (load.seed, load.rate)
        if not isinstance(load, Closed):
            self.sent.append((load.rate, seconds, load.seed))
        most = self.capacity(self.started[-1], seed)
        holds = rate <= most
        # As numbers are that NumPy gives.
        answered = np.float64(rate if holds else self.answered * most)
        latencies = {"p99": 80.0 if holds else 1000 + rate}
        return SimpleNamespace(requests_per_s=answered, requests=10, failed=0, percentiles_ms=latencies)


def measured(held=()):
    return Search(CONFIG, 100, [b""], 2, {name: getattr(FIRST, name) for name in held}).best(FIRST)


@pytest.mark.parametrize("capacity", [2.0, 30.0, 100.0, 400.0])
@pytest.mark.parametrize("answered", [0.05, 1.0])
def test_the_highest_rate_is_found_however_much_a_full_server_answers(monkeypatch, capacity, answered):
    machine = Machine(lambda args, seed: capacity, monkeypatch, answered)
    [best] = measured(held=HELD)
    assert 0.95 * capacity <= best.trial.rate <= capacity
    assert best.trial.p99_ms == 80.0
    # A minute in a fresh server, under other arrivals.
    assert machine.sent[-1] == (pytest.approx(best.trial.rate, rel=1e-3), 60.0, 1)
    assert {seconds for _, seconds, _ in machine.sent} == {8.0, 60.0}


def test_settings_are_changed_while_that_holds_more(monkeypatch):
    rates = {4: 250.0, 8: 300.0, 16: 200.0}
    machine = Machine(lambda args, seed: rates.get(args["ingress"]["max_batch_size"], 100.0), monkeypatch)
    [best, *others] = measured(held=[name for name in HELD if name not in {"max_batch_size", "replicas"}])
    assert best.candidate == replace(FIRST, max_batch_size=8)
    assert 285 <= best.trial.rate <= 300
    # Neither a larger batch nor more processes hold more; each is tried at one rate, as is a smaller batch.
    assert {str(each.candidate) for each in others} == {
        str(replace(FIRST, **changed))
        for changed in ({}, {"replicas": 2}, {"max_batch_size": 32}, {"max_batch_size": 4})
    }
    assert len(machine.started) == 6


def test_what_does_not_hold_five_percent_more_is_tried_at_that_rate(monkeypatch):
    Machine(lambda args, seed: 300.0, monkeypatch)
    [best, *others] = measured(held=[name for name in HELD if name != "max_batch_size"])
    assert [each.trial.rate / best.trial.rate for each in others] == pytest.approx([1.05] * len(others))
    assert [line[-1] for line in command.table([best, *others]).lines] == ["yes", *["no"] * len(others)]
    assert others
    # Nothing holds the goal: each was tried at the best one's rate.
    Machine(lambda args, seed: 0.0, monkeypatch)
    tried = measured(held=[name for name in HELD if name != "max_batch_size"])
    assert {line[-1] for line in command.table(tried).lines} == {"no"}


def test_a_rate_that_does_not_hold_for_a_minute_is_lowered(monkeypatch):
    Machine(lambda args, seed: 250.0 if seed else 300.0, monkeypatch)
    [best] = measured(held=HELD)
    assert 0.94 * 250 <= best.trial.rate <= 250


def test_a_goal_that_nothing_reaches_has_a_nearest(monkeypatch):
    machine = Machine(lambda args, seed: 0.0, monkeypatch)
    [best, *_] = measured()
    assert not best.trial.holds
    assert best.trial.p99_ms == min(1000 + rate for rate, _, _ in machine.sent)


UNKNOWN = ["speed=1", "placement=inline", "streams=1", "max_batch_size=", "max_batch_size=true", "threads=many"]
UNKNOWN += ["batch_wait_ms=.inf", "batch_wait_ms=-1", "batch_wait_ms=true"]


@pytest.mark.parametrize("pair", [*UNKNOWN, "threads=[", "replicas=1.5", "replicas=0", "batch_wait_ms=.nan"])
def test_what_can_not_be_held_is_said(pair):
    with pytest.raises(click.BadParameter):
        command.HeldType().convert(pair, None, None)


def test_what_is_held():
    given = ["replicas=2", "batch_wait_ms=2.5", "threads=null"]
    found = dict(command.HeldType().convert(pair, None, None) for pair in given)
    assert found == {"replicas": 2, "batch_wait_ms": 2.5, "threads": None}


@pytest.fixture
def tune(tmp_path, monkeypatch, capsys):
    """Runs the command, with servers whose p99 is given, up to 300 requests per second."""
    out, held = tmp_path / "tuned.yaml", [f"{name}={getattr(FIRST, name)}" for name in HELD if name != "threads"]

    def run(p99_ms, *arguments):
        def loaded(url, images, load, seconds):
            # As numbers are that NumPy gives.
            rate = np.float64(300.0 if isinstance(load, Closed) else load.rate)
            latencies = {"p99": p99_ms if rate <= 300 else 1e6}
            return SimpleNamespace(requests_per_s=rate, requests=10, failed=run.failed, percentiles_ms=latencies)

        @contextmanager
        def serving(config, cores):
            run.served.append(cores)
            check_arguments(config["applications"][0])
            yield "http://there"

        monkeypatch.setattr(search, "serving", serving)
        monkeypatch.setattr(search, "loaded", loaded)
        monkeypatch.setattr(command, "available_cpus", lambda: 2)
        given = [str(ROOT / "configs/colocated.yaml"), "--out", str(out), "--hold", "threads=null", *held]
        monkeypatch.setattr(sys, "argv", ["ensemble tune", *given, *arguments])
        run.served = []
        command.main()
        return capsys.readouterr().out, out

    run.failed = 0
    return run


def test_it_writes_a_configuration_and_what_it_held(tune):
    printed, out = tune(20.0, "--p99-ms", "30")
    text = out.read_text()
    assert "# Chosen by `ensemble tune` for a p99 of at most 30 ms." in text
    assert "requests/s at a p99 of 20.0 ms" in text
    assert "taskset -c 0-1 ensemble serve" in text
    check_arguments(yaml.safe_load(text)["applications"][0])
    assert f"ensemble serve {out}" in printed


def test_a_repository_beside_the_configuration_is_named_as_it_was(tmp_path):
    there, elsewhere = tmp_path / "models", tmp_path / "other" / "tuned.yaml"
    for file, repository in ((tmp_path / "tuned.yaml", "models"), (elsewhere, str(there))):
        config = {"applications": [application()]}
        config["applications"][0]["args"]["model_repository"] = str(there)
        [served] = command.beside(config, file)["applications"]
        assert served["args"]["model_repository"] == repository


def test_a_goal_that_is_not_reached_exits_by_3_with_the_nearest(tune, capsys):
    with pytest.raises(SystemExit) as raised:
        tune(45.0, "--p99-ms", "30")
    assert raised.value.code == 3
    assert "at a p99 of 45.0 ms" in capsys.readouterr().err


def test_a_p99_of_requests_that_failed_is_no_number(tune, tmp_path, capsys):
    tune.failed = 1
    with pytest.raises(SystemExit):
        tune(45.0, "--p99-ms", "30", "--markdown", str(tmp_path / "tried.md"))
    told = capsys.readouterr()
    assert "at a p99 without end" in told.err
    for text in (told.out, (tmp_path / "tuned.yaml").read_text(), (tmp_path / "tried.md").read_text()):
        assert "without end" in text
        assert " inf" not in text


def test_so_many_cores_are_served_on(tune):
    _, out = tune(20.0, "--p99-ms", "30", "--cores", "1")
    assert set(tune.served) == {1}
    assert "taskset -c 0-0 ensemble serve" in out.read_text()


@pytest.mark.parametrize(
    "arguments",
    [
        ["--p99-ms", "0"],
        ["--p99-ms", "nan"],
        ["--p99-ms", "5", "--out", "."],
        ["--p99-ms", "5", "--cores", "1024"],
        [],
    ],
)
def test_bad_input_is_a_usage_error(tune, arguments):
    with pytest.raises(SystemExit) as raised:
        tune(1.0, *arguments)
    assert raised.value.code == 2
