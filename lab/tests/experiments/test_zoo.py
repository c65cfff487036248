import numpy as np
import pytest
import yaml

from ensemble_models.ensembles import Members
from graph.config import parse
from lab.benchmark.workloads import MEMBERS
from lab.experiments.zoo import Setup, setups
from scripts.shipped import shipped

PREDICTED = Members(
    {
        # Right and sure, wrong and sure, wrong and unsure.
        "resnet": np.array([[0.9, 0.1], [0.1, 0.9], [0.4, 0.6]], np.float32),
        "densenet": np.array([[0.8, 0.2], [0.8, 0.2], [0.9, 0.1]], np.float32),
    },
    np.zeros(3, np.int64),
    dict.fromkeys(MEMBERS, 1.0),
    dict.fromkeys(MEMBERS, 1.0),
)


@pytest.mark.parametrize("setup", setups()[::3], ids=lambda setup: f"{setup.name} {setup.precision}")
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
        (("resnet",), None, 100 / 3, None),
        (MEMBERS, None, 200 / 3, None),
        (MEMBERS, 0.95, 200 / 3, 0),
        (MEMBERS, 0.7, 200 / 3, 200 / 3),
        (MEMBERS, 0.5, 100 / 3, 100),
    ],
)
def test_accuracy_is_that_of_who_was_asked(members, exit_at, top1, exits):
    found = Setup(members, "int8", exit_at).answers(PREDICTED)
    assert found["top1"] == pytest.approx(top1)
    assert found["exits"] == (None if exits is None else pytest.approx(exits))
