import pytest
from ray.serve import Application

from deployments.contract.errors import ConfigurationError
from ensemble_features.cache.feature import Caching
from ensemble_features.cascade.feature import Cascading
from ensemble_features.feedback.feature import Feedback
from ensemble_features.loading.feature import Loading
from examples import own_build
from graph.app import build
from tests.networks import constant, store


def args(repository, *names, **more):
    return {"model_repository": str(repository), "members": [{"name": name} for name in names], **more}


def test_a_third_member_is_one_more_entry(repository):
    assert isinstance(build(args(repository, "one", "six", "brightness")), Application)


@pytest.mark.parametrize("make", [build, own_build.build])
def test_keys_and_edges_hold_for_a_graph_of_any_shape(repository, tmp_path, make):
    keys = tmp_path / "keys"
    keys.write_text(f"mobile {'0' * 64}\n")
    made = make(args(repository, "one", "six", edges="handle", access={"keys": str(keys)}))
    [spec, *_] = made._bound_deployment.init_args
    assert (str(spec.access.keys), spec.edges) == (str(keys), "handle")


def test_of_a_graph_of_another_shape_the_features_hold_that_depend_on_none(repository):
    members = {"cache": {}, "ensemble": {"cascade": {"order": ["one", "six"], "exit_at": [0.5]}}}
    made = own_build.build(args(repository, "one", "six", feedback={}, **members))
    [spec, *_] = made._bound_deployment.init_args
    features = {each.feature for each in spec.build.args[2]}
    assert {Loading, Feedback} <= features
    assert {Cascading, Caching}.isdisjoint(features)


def test_members_that_disagree_on_class_count_are_named(repository, tmp_path):
    store(tmp_path, "two", constant([0.5, 0.5]), classes=("x", "y"))
    store(tmp_path, "three", constant([0.5, 0.3, 0.2]), classes=("x", "y", "z"))
    with pytest.raises(ConfigurationError, match=r"'two' and 'three' disagree on the number of classes: 2 and 3"):
        build(args(tmp_path, "two", "three"))


def test_members_that_disagree_on_labels_are_named(tmp_path):
    store(tmp_path, "a", constant([0.5, 0.5]), classes=("x", "y"))
    store(tmp_path, "b", constant([0.5, 0.5]), classes=("y", "z"))
    message = r"'a' and 'b' disagree on the labels, as 'x' \(2 and 2 classes\): leave one of them out, or give both"
    with pytest.raises(ConfigurationError, match=message):
        build(args(tmp_path, "a", "b"))


def test_a_size_that_a_member_does_not_take_is_told(tmp_path):
    store(tmp_path, "a", constant([0.5, 0.5], size=32), classes=("x", "y"))
    store(tmp_path, "b", constant([0.5, 0.5], size=64), classes=("x", "y"))
    assert isinstance(build(args(tmp_path, "a", "b")), Application)
    with pytest.raises(ConfigurationError, match=r"transformer\.size: \(32, 32\), but member 'b' takes \(64, 64\)"):
        build(args(tmp_path, "a", "b", transformer={"size": [32, 32]}))


def test_labels_must_be_as_many_as_classes(tmp_path):
    store(tmp_path, "a", constant([0.5, 0.5]), classes=("x", "y", "z"))
    with pytest.raises(ConfigurationError, match="2 classes but 3 labels"):
        build(args(tmp_path, "a"))


def test_an_unknown_model_names_those_there_are(repository):
    with pytest.raises(ConfigurationError, match=r"no model 'seven'.*'brightness', 'one', 'six'"):
        build(args(repository, "seven"))


def test_an_unknown_version_names_those_there_are(repository):
    members = [{"name": "one", "version": 7}]
    with pytest.raises(ConfigurationError, match=r"no version 7; it has \[1\]"):
        build({"model_repository": str(repository), "members": members})


def canaried(repository, **member):
    members = [{"name": "a", "canary": {"version": 2, "share": 0.1}, **member}]
    return {"model_repository": str(repository), "members": members}


def test_a_canary_is_another_version_of_the_same_pixels(tmp_path):
    store(tmp_path, "a", constant([0.5, 0.5]), classes=("x", "y"))
    store(tmp_path, "a", constant([0.5, 0.5]), version=2, classes=("x", "y"))
    assert isinstance(build(canaried(tmp_path, version=1)), Application)
    with pytest.raises(ConfigurationError, match=r"members.a.canary: version 2 is the member's own; give"):
        build(canaried(tmp_path))
    store(tmp_path, "a", constant([0.5, 0.5], size=64), version=3, classes=("x", "y"))
    with pytest.raises(ConfigurationError, match="wants other pixels"):
        build(canaried(tmp_path, version=3))
    store(tmp_path, "a", constant([0.5, 0.3, 0.2]), version=4, classes=("x", "y", "z"))
    with pytest.raises(ConfigurationError, match="'a' and 'a-canary' disagree"):
        build(canaried(tmp_path, version=1, canary={"version": 4, "share": 0.1}))


@pytest.mark.parametrize("feature", ["cascade", "canary", "shadow"])
def test_a_feature_without_its_section_is_refused(repository, feature):
    with pytest.raises(
        ConfigurationError, match=rf"features\.{feature}: it takes part by `.*`, which the arguments lack"
    ):
        build(args(repository, "one", "six", features={feature: {}}))
