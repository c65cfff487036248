"""Which versions and thresholds may be served instead, by labelled images."""

from __future__ import annotations

import numpy as np
import pytest
import yaml

from ensemble_capacity.tune.alternatives import AS_CONFIGURED, Alternative, Alternatives, exits_of
from ensemble_models.dataset import Dataset
from packages.models.tests.tiny import LABELS, add, constant
from scripts.configuration import check_arguments
from scripts.errors import ScriptError
from tests.conftest import ROOT

SURE, UNSURE, WRONG = [0.05, 0.9, 0.05], [0.25, 0.5, 0.25], [0.9, 0.05, 0.05]


@pytest.fixture
def found(tmp_path, draw):
    """The alternatives to a configuration of the members `a` and `b`, on images of cats."""

    def find(versions, most_lost, ensemble=None):
        for name, each in versions.items():
            for precision, answer in each:
                add(tmp_path / "models", name, constant(answer), precision)
        arguments = {
            "model_repository": str(tmp_path / "models"),
            "members": [{"name": "a", "version": 1}, {"name": "b", "version": 1, "version_policy": "fixed"}],
            "ensemble": ensemble or {},
        }
        config = {"applications": [{"import_path": "graph.app:build", "args": arguments}]}
        parsed = check_arguments(config["applications"][0])
        from graph.signature import resolve_signatures

        said = []
        dataset = Dataset.open(draw({"cat": 40}))
        costs = lambda versions: {"a": 1.0, "b": 2.0}  # noqa: E731
        return (
            Alternatives(parsed, resolve_signatures(parsed), dataset, most_lost, costs, said.append).found(),
            said,
            config,
        )

    return find


def test_without_a_bound_answers_stay_what_they_are(found):
    versions = {"a": [("FP16", SURE), ("INT8", SURE)], "b": [("FP16", SURE), ("INT8", SURE)]}
    [only], said, _ = found(versions, None, {"cascade": {"order": ["a", "b"], "exit_at": [0.8]}})
    assert (only.name, only.versions, only.exit_at, only.exits) == ("as configured", (), None, (1.0,))
    assert not said


def test_another_version_is_tried_if_it_loses_no_more(found):
    versions = {"a": [("FP16", SURE), ("INT8", SURE)], "b": [("FP16", SURE), ("INT8", SURE)]}
    [own, other], [line], config = found(versions, 5)
    assert own.name == "as configured"
    assert other.versions == (("a", 2), ("b", 2))
    assert "INT8" in other.name
    assert "tried" in line
    members = other.config(config)["applications"][0]["args"]["members"]
    assert [member["version"] for member in members] == [2, 2]
    assert "version_policy" not in members[1]


def test_where_there_is_nothing_else_that_is_said(found):
    [own], [line], _ = found({"a": [("FP16", SURE)], "b": [("FP16", SURE)]}, 5)
    assert (own.name, own.loss) == ("as configured", "")
    assert "no other version of the models and no cascade" in line


def test_a_version_that_loses_more_is_left_out_and_said(found):
    versions = {"a": [("FP16", SURE), ("INT8", WRONG)], "b": [("FP16", SURE), ("INT8", WRONG)]}
    [own], [line], _ = found(versions, 5)
    assert own.versions == ()
    assert "-100.00 points" in line
    assert "left out, because more than 5 may be lost" in line


def test_the_cheapest_thresholds_that_lose_no_more(found):
    versions = {"a": [("FP16", UNSURE)], "b": [("FP16", SURE)]}
    cascade = {"cascade": {"order": ["a", "b"], "exit_at": [0.8]}}
    [own, cheaper], _, config = found(versions, 5, cascade)
    assert own.exits == (0.0,)
    assert cheaper.exits == (1.0,)
    assert cheaper.exit_at[0] <= 0.5
    assert cheaper.config(config)["applications"][0]["args"]["ensemble"]["cascade"]["exit_at"] == list(cheaper.exit_at)


def test_thresholds_under_load_are_never_above_the_usual_ones():
    config = yaml.safe_load((ROOT / "configs/student.yaml").read_text())
    changed = Alternative("other", exit_at=(0.55, 0.7)).config(config)
    ensemble = check_arguments(changed["applications"][0]).ensemble
    assert (ensemble.cascade.exit_at, ensemble.under_load.exit_at) == ((0.55, 0.7), (0.55, 0.0))
    # The former thresholds' own.
    assert ensemble.cascade.versions == {}


def test_too_few_images_allow_no_alternative(found):
    versions = {"a": [("FP16", SURE), ("INT8", SURE)], "b": [("FP16", SURE)]}
    with pytest.raises(ScriptError, match=r"40 images can't show a loss of 2 points: one .* 2\.5 points; give 50"):
        found(versions, 2)
    # Half of the images choose.
    every, said, _ = found(versions, 4, {"cascade": {"order": ["a", "b"], "exit_at": [0.8]}})
    assert len(every) == 2
    assert "other thresholds: 20 images that choose, half of all, can't show a loss of 4 points" in said[0]


def test_thresholds_that_lose_too_much_are_not_tried(found):
    # The first member is always wrong, and the two together are right.
    versions = {"a": [("FP16", [0.5, 0.4, 0.1])], "b": [("FP16", SURE)]}
    every, _, _ = found(versions, 5, {"cascade": {"order": ["a", "b"], "exit_at": [0.8]}})
    assert {each.exits for each in every} == {(0.0,)}


def test_an_alternative_is_what_it_says():
    assert Alternative("as configured") == AS_CONFIGURED
    assert len(LABELS) == 3
    assert exits_of((0.0, 1.0)) == (0.0,)
    assert np.isclose(exits_of((0.2, 0.4, 0.4))[1], 0.5)
