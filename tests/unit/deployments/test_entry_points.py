import sys

import numpy as np
import pytest

from deployments import entry_points
from deployments.combiner import combine
from deployments.contract.errors import ConfigurationError
from deployments.contract.member import MemberConfig
from deployments.entry_points import COMBINERS, FEATURES, MEMBERS, find, find_class, names, not_installed
from deployments.members.openvino import OpenVino
from graph.config import parse
from graph.feature import wanted
from tests.conftest import ROOT, read_anew


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A module of one's own, on the import path."""
    (tmp_path / "own_code.py").write_text(
        "def flat(members, weights): return members.sum(axis=(0, 2))\n"
        "def nan(members, weights): return members[0] * float('nan')\n"
        "class Other: pass\n"
    )
    (tmp_path / "own_broken.py").write_text("raise RuntimeError('broken')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("own_code", None)


def test_the_projects_own_are_found_by_name():
    assert find_class(MEMBERS, "openvino", MemberConfig) is OpenVino
    assert {"mean", "geometric_mean", "majority_vote"} <= set(names(COMBINERS))
    assert {"cache", "canary", "cascade", "feedback", "loading", "receipt", "shadow"} <= set(names(FEATURES))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("openvin", "did you mean 'openvino'"),
        ("no_such_module:Thing", "ModuleNotFoundError"),
        ("own_code:Missing", "AttributeError"),
        ("own_broken:Thing", "RuntimeError: broken"),
    ],
)
def test_a_name_that_nothing_has_is_told(mine, name, message):
    with pytest.raises(ValueError, match=message):
        find(MEMBERS, name)


@pytest.mark.parametrize("is_checkout", [True, False])
def test_the_plugins_that_are_missing_are_named_with_the_command_that_installs_them(
    is_checkout, tmp_path, without_plugins, monkeypatch
):
    if not is_checkout:
        monkeypatch.setattr(entry_points, "PACKAGES", tmp_path)
    told = not_installed()
    plugins = ["features", "interop", "onnxruntime", "sources"]
    assert told.startswith(f"; not installed here: {', '.join(f'ensemble-{each}' for each in plugins)} (pip install ")
    folders = [ROOT / "packages" / "plugins" / each for each in plugins]
    what = [f"-e {each}" for each in folders] if is_checkout else [f"ensemble_{each}-*.whl" for each in plugins]
    assert told.endswith(f"pip install {' '.join(what)})")


def test_where_every_plugin_is_installed_nothing_is_missing():
    assert not_installed() == ""


def test_a_scheme_of_repositories_is_not_taken_for_a_kind_that_is_not_installed():
    with pytest.raises(ValueError, match="no installed plugin has 's3'"):
        find(MEMBERS, "s3")


def test_a_kind_that_is_no_member_is_told(mine):
    with pytest.raises(
        ConfigurationError, match=r"members\.0: kind: 'own_code:Other' is no subclass of .*MemberConfig"
    ):
        parse({"members": [{"name": "one", "kind": "own_code:Other"}]})


def test_a_feature_that_is_none_and_one_without_settings_are_told(mine):
    members = [{"name": "one"}]
    with pytest.raises(ConfigurationError, match="features: 'own_code:Other' is no subclass"):
        wanted(parse({"members": members, "features": {"own_code:Other": {}}}))
    with pytest.raises(ConfigurationError, match=r"features\.receipt: unknown field 'below'"):
        wanted(parse({"members": members, "features": {"receipt": {"below": 1}}}))


def test_an_installed_feature_that_can_not_be_imported_is_told(mine, tmp_path):
    (package := tmp_path / "broken-1.dist-info").mkdir()
    (package / "METADATA").write_text("Name: broken\nVersion: 1\n")
    (package / "entry_points.txt").write_text(f"[{FEATURES}]\nbroken = own_broken:Thing\n")
    with read_anew(), pytest.raises(ConfigurationError, match="features: 'own_broken:Thing' can't be imported"):
        wanted(parse({"members": [{"name": "one"}]}))


def test_features_are_in_their_order_whichever_the_configuration_names_first():
    config = parse({"members": [{"name": "one"}], "feedback": {}, "features": {"receipt": {}}})
    assert [each.feature.__name__ for each in wanted(config)] == [
        *("Loading", "Feedback", "Receipts", "Contributions", "Page")
    ]


def test_the_section_of_a_feature_may_stand_beside_the_others_and_not_in_two_places():
    members, settings = [{"name": "one"}], {"max_requests": 5}
    beside, within = (
        {"members": members, "feedback": settings},
        {"members": members, "features": {"feedback": settings}},
    )
    [settings_beside] = [each.settings for each in wanted(parse(beside)) if each.settings is not None]
    [settings_within] = [each.settings for each in wanted(parse(within)) if each.settings is not None]
    assert settings_beside == settings_within
    assert settings_beside.max_requests == 5
    assert not any(each.settings for each in wanted(parse({"members": members, "feedback": None})))
    with pytest.raises(ConfigurationError, match="feedback: `features` has it, too; remove one"):
        parse({**beside, **within})
    with pytest.raises(ConfigurationError, match=r"features\.feedback: max_requests: .*at least|greater"):
        wanted(parse({"members": members, "feedback": {"max_requests": 0}}))


@pytest.mark.parametrize("method", ["own_code:flat", "own_code:nan"])
def test_a_combination_of_another_shape_or_without_numbers_fails(mine, method):
    scores = np.full((3, 2), 0.5, np.float32)
    with pytest.raises(ConfigurationError, match=f"combiner.method: {method} returned no probabilities of shape"):
        combine([scores, scores], [1, 1], method)
