import itertools
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest
import yaml

from graph.config import parse
from lab import reported
from lab.benchmark.workloads import Workload
from lab.experiments import baseline, ladder
from lab.experiments.ladder import table
from scripts.errors import ScriptError
from scripts.evaluate.ensembles import Members
from scripts.interval import Interval
from scripts.shipped import shipped

ROW = SimpleNamespace(
    requests=1200,
    failed=1,
    first_error="HTTP 500",
    percentiles_ms={"p50": 2.0},
    mean_ms=2.5,
    min_ms=1.0,
    max_ms=9.0,
    requests_per_s=200.0,
)
OURS = [step for step in [*ladder.steps(), *baseline.steps()] if step.peer is None]
FILES = {"separate": "serve_config.yaml", "colocated": "configs/colocated.yaml"}


def parsed(step):
    config = yaml.safe_load(shipped(FILES[step.placement]).read_text())
    step.edit(config)
    assert all("autoscaling_config" not in each for each in config["applications"][0]["deployments"])
    return parse(config["applications"][0]["args"])


@pytest.mark.parametrize("step", OURS, ids=lambda step: step.name)
def test_a_step_is_a_configuration(step):
    config = parsed(step)
    assert (config.front, config.edges) == (step.front, step.edges)
    assert (config.ensemble.cascade is not None, config.cache is not None) == (step.exit_at is not None, step.cache)
    assert {member.threads for member in config.members} == {step.threads}
    assert step.batch is None or config.ingress.max_batch_size == step.batch


def test_every_step_of_the_ladder_changes_one_thing():
    own = [vars(step) for step in ladder.steps()[1:]]
    for before, after in itertools.pairwise(own):
        assert len({name for name in after if after[name] != before[name]} - {"name"}) == 1


@pytest.mark.parametrize("steps", [ladder.steps(), baseline.steps()])
def test_every_step_can_be_started_and_has_a_name_of_its_own(steps):
    assert len({step.name for step in steps}) == len(steps)
    assert all(step.system.protocols for step in steps)


def test_a_step_that_loses_stays_in_the_table():
    numbers = dict.fromkeys(("median_ms", "average_ms", "min_ms", "max_ms"), 1.0)
    rates = {"first": 100.0, "loses": 50.0, "last": 200.0}
    records = [
        {"step": name, "requests": 1200, "failures": 0, "requests_per_s": rate, "top1": 93.0, **numbers}
        for name, rate in rates.items()
    ]
    lines = table(records).lines
    assert [line[0] for line in lines] == list(rates)
    assert [line[8] for line in lines] == ["", "0.50", "4.00"]
    assert lines[0][1] == "1,200"


def test_a_server_that_does_not_start_leaves_its_row_and_the_steps_go_on(tmp_path, monkeypatch, draw):
    @contextmanager
    def running(system, load, edit, environment):
        if system.name == "chain":
            raise ScriptError("the server did not start:\nthe end of its log")
        yield SimpleNamespace(row=lambda *_: ROW)

    monkeypatch.setattr(ladder, "running", running)
    monkeypatch.setattr(ladder, "members_of", lambda *_: Members({}, np.zeros(1, np.int64), {}, {}))
    monkeypatch.setattr(ladder.Setup, "answers", lambda *_: (Interval(93.0, 92.0, 94.0), 0.0))
    monkeypatch.setattr(ladder, "workload", lambda name, each: Workload(name, tmp_path, 2, (32, 32), (), None))
    monkeypatch.setattr(ladder, "find", lambda *_: None)
    monkeypatch.setattr(ladder, "default_data", lambda: draw({"cat": 2}))
    records = [row for part in baseline.measure(1.0) for row in part.rows()]
    assert [record["step"] for record in records] == [step.name for step in baseline.steps()]
    assert records[1]["error"] == "the server did not start: the end of its log"
    assert records[0]["requests"] == 1200
    lost = table(records)
    assert lost.lines[1][1] == "not measured"
    assert [note.rpartition(": ")[2] for note in lost.notes][:2] == [
        "the first failure was 'HTTP 500'.",
        "the end of its log",
    ]
    assert baseline.groups(records)[0][1][-1].ours
    assert len(baseline.groups(records)[0][1]) == len(records) - 2


def test_the_ends_of_the_ladder_are_compared_with_every_reported_one():
    rows = [{"step": "first", "requests_per_s": 10.0}, {"step": "last", "requests_per_s": 400.0}]
    found = ladder.compare(rows)
    assert set(found) == {each.what for each in reported.of("ladder")}
    assert found["last rate of the second ladder"].value == 400.0


def test_a_ladder_whose_foot_was_not_measured_compares_its_top():
    rows = [{"step": "first", "error": "no"}, {"step": "last", "requests_per_s": 400.0}]
    assert {name.split()[0] for name in ladder.compare(rows)} == {"last"}


def test_without_images_the_ladder_says_what_to_set(monkeypatch):
    monkeypatch.setattr(ladder, "default_data", lambda: None)
    with pytest.raises(ScriptError, match="ENSEMBLE_DATA"):
        ladder.check()
