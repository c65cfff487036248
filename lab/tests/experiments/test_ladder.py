import itertools
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest
import yaml

from ensemble_models.ensembles import Members
from graph.config import parse
from lab import reported
from lab.benchmark.systems import named
from lab.benchmark.workloads import MEMBERS, Workload
from lab.experiments import ladder
from lab.experiments.ladder import LADDER, shown
from scripts.errors import ScriptError
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
STEPS = ladder.ladder()
TUNED = STEPS[1].environment
OURS = [step for step in STEPS if step.peer is None]
FILES = {"separate": "serve_config.yaml", "colocated": "configs/colocated.yaml"}


def parsed(step):
    config = yaml.safe_load(shipped(FILES[step.placement]).read_text())
    step.edit(config)
    assert all("autoscaling_config" not in each for each in config["applications"][0]["deployments"])
    return parse(config["applications"][0]["args"])


@pytest.mark.parametrize("step", OURS, ids=lambda step: step.name)
def test_a_step_is_a_configuration(step):
    config = parsed(step)
    assert (config.front, config.edges) == (step.args["front"], step.args["edges"])
    assert [member.name for member in config.members] == list(step.members)
    assert step.environment == (TUNED if config.front == "serve" else {})
    assert ("ingress" in step.args) == (config.ingress.max_batch_size == 1)
    assert (config.ensemble.field("cascade") is not None) == (step.exit_at is not None)


def test_every_step_of_the_ladder_changes_one_thing():
    own = [{**vars(step), **step.args} for step in OURS]
    for before, after in itertools.pairwise(own):
        different = {name for name in (*before, *after) if after.get(name) != before.get(name)}
        assert len(different - {"name", "args", "ensemble", "environment"}) <= 1


def test_every_step_can_be_started_and_has_a_name_of_its_own():
    assert len({step.name for step in STEPS}) == len(STEPS)
    assert named([step.peer for step in STEPS if step.peer is not None])


def test_accuracy_is_that_of_who_was_asked():
    # Right and sure, wrong and sure, wrong and unsure.
    resnet = np.array([[0.9, 0.1], [0.1, 0.9], [0.4, 0.6]], np.float32)
    densenet = np.array([[0.8, 0.2], [0.8, 0.2], [0.9, 0.1]], np.float32)
    same = dict.fromkeys(MEMBERS, 1.0)
    predicted = Members({"resnet": resnet, "densenet": densenet}, np.zeros(3, np.int64), same, same)
    cascades = [{"ensemble": {"cascade": {"exit_at": [exit_at]}}} for exit_at in (0.95, 0.7, 0.5)]
    found = [ladder.Step("x", args=args).accuracy(predicted) for args in ({}, *cascades)]
    assert [each["top1"] for each in found] == pytest.approx([200 / 3, 200 / 3, 200 / 3, 100 / 3])
    assert [each["exits"] for each in found] == [None, *(pytest.approx(exits) for exits in (0, 200 / 3, 100))]


def test_a_step_that_loses_stays_in_the_table():
    numbers = dict.fromkeys(("median_ms", "average_ms", "min_ms", "max_ms"), 1.0)
    rates = {"first": 100.0, "loses": 50.0, "last": 200.0}
    records = [
        {"step": name, "requests": 1200, "failed": 0, "requests_per_s": rate, "top1": 93.0, **numbers}
        for name, rate in rates.items()
    ]
    lines = LADDER.table(shown(records)).lines
    assert [line[0] for line in lines] == list(rates)
    assert [line[2] for line in lines] == ["", "0.50", "4.00"]
    assert lines[0][1] == "100.0"


def test_a_server_that_does_not_start_leaves_its_row_and_the_steps_go_on(tmp_path, monkeypatch, draw):
    @contextmanager
    def running(system, load, edit, environment):
        if system.name == "chain":
            raise ScriptError("the server did not start:\nthe end of its log")
        yield SimpleNamespace(row=lambda *_: ROW)

    monkeypatch.setattr(ladder, "running", running)
    names = (*MEMBERS, ladder.STUDENT)
    scores = {name: np.eye(2, dtype=np.float32) for name in names}
    predicted = Members(scores, np.zeros(2, np.int64), *[dict.fromkeys(names, 1.0)] * 2)
    monkeypatch.setattr(ladder, "members_of", lambda *_: predicted)
    monkeypatch.setattr(ladder, "workload", lambda name, each: Workload(name, tmp_path, 2, (), None))
    monkeypatch.setattr(ladder, "find", lambda *_: None)
    monkeypatch.setattr(ladder, "CACHE", tmp_path)
    monkeypatch.setattr("lab.experiments.experiment.default_data", lambda: draw({"cat": 2}))
    rounds = [row for part in ladder.parts(1.0) for row in part.rows()] * 3
    records = LADDER.summary(rounds)
    assert [record["step"] for record in records] == [step.name for step in STEPS]
    assert records[1]["error"] == "the server did not start: the end of its log"
    assert (records[0]["requests"], records[0]["failed"]) == (3600, 3)
    assert records[0]["top1"] == 50.0
    lost = LADDER.table(records)
    assert lost.lines[1][1] == ""
    assert lost.lines[3][2] == "1.00"
    assert lost.notes[0].endswith("the server did not start: the end of its log")
    assert ladder.notes(records)[0].endswith("the first failure was 'HTTP 500'.")
    [(_, bars)] = LADDER.picture.groups(records)
    assert bars[-1].ours
    assert len(bars) == len(STEPS) - 1


def test_the_ends_of_the_ladder_are_compared_with_every_reported_one():
    rates = {"first": (10.0, 93.0), "quick": (200.0, 93.1), "loses accuracy": (400.0, 85.0)}
    rows = [{"step": step, "requests_per_s": rate, "top1": top1} for step, (rate, top1) in rates.items()]
    found = LADDER.compare(rows)
    assert set(found) == {each.subject for each in reported.of("ladder")}
    assert found["image scoring, first"] == "10.0 requests/s"
    assert found["image scoring, last"] == "200.0 requests/s"


def test_a_ladder_whose_foot_was_not_measured_compares_nothing():
    rows = [{"step": "first", "error": "no"}, {"step": "last", "requests_per_s": 400.0, "top1": 93.0}]
    assert LADDER.compare(rows) == {}


def test_without_images_the_ladder_says_what_to_set(monkeypatch):
    monkeypatch.setattr("lab.experiments.experiment.default_data", lambda: None)
    with pytest.raises(ScriptError, match="ENSEMBLE_DATA"):
        LADDER.check()
