"""What a replica makes of a recipe, whenever Serve starts it."""

import pytest

from deployments.contract.errors import ConfigurationError
from deployments.members.versioned import VersionSettings
from graph.config import parse
from graph.placement import node_specs
from graph.signature import resolve_signatures
from tests.networks import CLASSES, constant, one_hot, store
from tests.server.server import eventually


def put(repository, version, **more):
    return store(repository, "m", constant(one_hot(version)), version, **more)


@pytest.fixture
def replica(tmp_path):
    """Starts a replica of a member; its application is built with version 2 of the model, the second of two."""

    def of(images=None, transformer=None, **member):
        for version in (1, 2):
            put(tmp_path, version, input=images or {})
        members = [{"name": "m", "threads": 1, **member}]
        config = parse({"model_repository": str(tmp_path), "members": members, "transformer": transformer or {}})
        return node_specs(config, resolve_signatures(config))["m"].make

    return of


@pytest.mark.parametrize(("member", "expected"), [({}, 2), ({"version": 1}, 1), ({"version_policy": "latest"}, 3)])
def test_a_replica_that_starts_later_serves_the_version_that_its_policy_names(replica, tmp_path, member, expected):
    start = replica(**member)
    put(tmp_path, 3)
    # It is still being copied.
    (tmp_path / "m" / "4").mkdir()
    assert start().version == expected


def test_the_settings_change_the_version_of_a_replica_that_started_later_and_give_it_back(replica, tmp_path):
    start = replica()
    put(tmp_path, 3)
    later = start()
    for wanted, expected in ((3, 3), (1, 1), (None, 2)):
        later.settings = VersionSettings(version=wanted)
        assert eventually(lambda: later.version == expected)  # noqa: B023


def test_a_first_version_whose_files_were_replaced_is_checked_as_a_new_one_is(replica, tmp_path):
    start = replica()
    (tmp_path / "m" / "2").rename(tmp_path / "before")
    put(tmp_path, 2, classes=("other", *CLASSES[1:]))
    with pytest.raises(ConfigurationError, match="'m': version 2: its labels are not the ensemble's"):
        start()


def test_a_first_version_that_was_removed_is_named(replica, tmp_path):
    start = replica()
    put(tmp_path, 3)
    (tmp_path / "m" / "2").rename(tmp_path / "before")
    with pytest.raises(ConfigurationError, match=r"'m': model 'm' has no version 2; it has \[1, 3\]"):
        start()


@pytest.mark.parametrize(
    ("images", "accepted"),
    [
        ({"crop_ratio": 0.875}, True),
        ({"crop_ratio": 0.5}, False),
        # It leaves the crop open, and takes that of the others.
        ({}, True),
        ({"crop_ratio": 0.875, "resize": "stretch"}, False),
        ({"crop_ratio": 0.875, "interpolation": "cubic"}, False),
    ],
)
def test_replicas_accept_the_same_versions_whenever_they_start(replica, tmp_path, images, accepted):
    start = replica({"crop_ratio": 0.875}, version_policy="latest")
    early = start()
    put(tmp_path, 3, input=images)
    early.update(settled=True)
    late = start()
    assert [(each.version, each.refused) for each in (early, late)] == [(3, 0) if accepted else (2, 1)] * 2


def test_a_crop_that_the_configuration_sets_is_whatever_the_models_say(replica, tmp_path):
    start = replica({"crop_ratio": 0.875}, {"crop_ratio": 0.9}, version_policy="latest")
    put(tmp_path, 3, input={"crop_ratio": 0.5})
    assert start().version == 3


def test_a_canary_stays_with_its_version_and_its_member_too(tmp_path):
    for version in (1, 2):
        put(tmp_path, version)
    members = [{"name": "m", "threads": 1, "canary": {"version": 1, "share": 0.5}}]
    config = parse({"model_repository": str(tmp_path), "members": members})
    made = node_specs(config, resolve_signatures(config))
    put(tmp_path, 3)
    assert {name: made[name].make().version for name in ("m", "m-canary")} == {"m": 2, "m-canary": 1}
