import json
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest
import yaml

from graph.config import parse
from lab.benchmark.workloads import MEMBERS, workload
from lab.experiments import cascade
from lab.experiments.cascade import Setup, setups
from scripts.shipped import shipped
from scripts.tune_cascade.search import Members

SAID = Members(
    {
        # Right and sure, wrong and sure, wrong and unsure.
        "resnet": np.array([[0.9, 0.1], [0.1, 0.9], [0.4, 0.6]], np.float32),
        "densenet": np.array([[0.8, 0.2], [0.8, 0.2], [0.9, 0.1]], np.float32),
    },
    np.zeros(3, np.int64),
    dict.fromkeys(MEMBERS, 1.0),
    dict.fromkeys(MEMBERS, 1.0),
)


def test_members_alone_together_and_cascades_in_each_precision():
    names = [setup.name for setup in setups([0.5, 0.9])]
    one = ["resnet", "densenet", "resnet and densenet"]
    one += ["resnet then densenet, exit at 0.5", "resnet then densenet, exit at 0.9"]
    assert names == 2 * one
    assert {setup.precision for setup in setups([])} == {"float32", "int8"}


@pytest.mark.parametrize("setup", setups([0.7]), ids=lambda setup: f"{setup.name} {setup.precision}")
def test_a_setup_is_a_configuration(setup):
    config = yaml.safe_load(shipped("configs/colocated.yaml").read_text())
    setup.edit(config)
    parsed = parse(config["applications"][0]["args"])
    assert tuple(member.name for member in parsed.members) == setup.members
    cascade = parsed.ensemble.cascade
    assert (None if cascade is None else cascade.exit_at[0]) == setup.exit_at


@pytest.mark.parametrize(
    ("members", "exit_at", "top1", "exits"),
    [
        (("resnet",), None, 100 / 3, 0),
        (("densenet",), None, 100, 0),
        (MEMBERS, None, 200 / 3, 0),
        (MEMBERS, 0.95, 200 / 3, 0),
        (MEMBERS, 0.7, 200 / 3, 200 / 3),
        (MEMBERS, 0.5, 100 / 3, 100),
    ],
)
def test_accuracy_is_that_of_who_was_asked(members, exit_at, top1, exits):
    accuracy, left = Setup(members, "int8", exit_at).answers(SAID)
    assert accuracy.mean == pytest.approx(top1)
    assert left == pytest.approx(exits)


def test_every_setup_has_a_point(tmp_path, monkeypatch, draw):
    asked = []

    @contextmanager
    def running(system, load, edit):
        config = load.config(system.placement, 1, 2)
        edit(config)
        asked.append((len(config["applications"][0]["args"]["members"]), load.version, len(load.images)))
        told = {"requests_per_s": 100.0 * len(asked), "server_cpu_ms_per_request": 2.0}
        yield SimpleNamespace(load=lambda *_: told)

    monkeypatch.setattr(cascade, "running", running)
    monkeypatch.setattr(cascade, "members_of", lambda *_: SAID)
    monkeypatch.setattr(cascade, "set_up", lambda: None)
    # Without this it would make photographs.
    monkeypatch.setattr(cascade, "workload", lambda name, precision: _load(monkeypatch, name, precision))
    flags = ["--data", str(draw({"cat": 2, "dog": 1})), "--exit-at", "0.7", "--rounds", "2"]
    cascade.main([*flags, "--json", str(tmp_path / "zoo.json"), "--markdown", str(tmp_path / "zoo.md")])
    assert asked == 2 * [(count, version, 3) for version in (1, 2) for count in (1, 1, 2, 2)]
    points = json.loads((tmp_path / "zoo.json").read_text())
    assert [point["requests_per_s"] for point in points] == [100 * (2 * n + 8) / 2 for n in range(1, 9)]
    assert len((tmp_path / "zoo.md").read_text().splitlines()) == 2 + 8


def _load(monkeypatch, name, precision):
    monkeypatch.setattr("lab.benchmark.workloads.photographs", lambda kind: ())
    return workload(name, precision)
