import sys
from types import ModuleType

import pytest

from ensemble_features.cache import feature
from ensemble_features.cache.feature import identity
from ensemble_features.cache.stores import CacheSettings
from graph.config import parse
from graph.feature import Feature
from graph.signature import resolve_signatures
from tests.networks import brightness, constant, one_hot, store


def digest(root, *members, **args):
    config = parse(
        {"model_repository": str(root), "members": [{"name": m} for m in members or ("a", "b")], "cache": {}, **args}
    )
    return identity(
        config, resolve_signatures(config, with_identities=True), CacheSettings.model_validate(config.features["cache"])
    )


@pytest.fixture
def root(tmp_path):
    for name in ("a", "b"):
        store(tmp_path, name, constant(one_hot(1)))
    return tmp_path


def test_what_decides_scores_decides_the_identity(root):
    own = digest(root)
    assert digest(root) == own
    assert digest(root, transformer={"crop_ratio": 0.5}) != own
    assert digest(root, "a") != own
    members = [{"name": "a", "inference_precision": "f32"}, {"name": "b"}]
    assert digest(root, members=members) != own
    store(root, "a", brightness(), version=2)
    assert digest(root) != own
    assert digest(root, members=[{"name": "a", "version": 1}, {"name": "b"}]) == own
    # As the weights of a SavedModel are.
    (root / "a/1/variables").mkdir()
    (root / "a/1/variables/weights").write_bytes(b"1")
    assert digest(root, members=[{"name": "a", "version": 1}, {"name": "b"}]) != own


def test_models_are_hashed_only_for_a_cache(root):
    config = parse({"model_repository": str(root), "members": [{"name": "a"}]})
    assert resolve_signatures(config).identities == {}


def test_what_decides_nothing_does_not(root):
    own = digest(root)
    members = [{"name": "a", "threads": 3, "weight": 2.0, "placement": "inline"}, {"name": "b"}]
    for more in ({"members": members}, {"combiner": {"method": "geometric_mean"}}, {"ensemble": {"quorum": 1}}):
        assert digest(root, **more) == own


def test_in_a_cascade_whom_it_asks_is_decided_by_thresholds_weights_and_the_method_too(root):
    def cascaded(exit_at=0.7, **more):
        return digest(root, ensemble={"cascade": {"order": ["a", "b"], "exit_at": [exit_at]}}, **more)

    kinds = [
        digest(root),
        cascaded(),
        cascaded(0.8),
        cascaded(combiner={"method": "geometric_mean"}),
        cascaded(combiner={"weights": {"a": 2, "b": 1}}),
    ]
    assert len(set(kinds)) == len(kinds)


def test_a_canary_decides_scores_by_its_version_and_not_by_its_share(root):
    def tried(version, share):
        canary = {"version": version, "share": share}
        return digest(root, members=[{"name": "a", "version": 1, "canary": canary}, {"name": "b"}])

    own = digest(root)
    for version in (2, 3):
        store(root, "a", brightness(), version=version)
    assert tried(2, 0.1) == tried(2, 0.2)
    assert len({own, tried(2, 0.1), tried(3, 0.1)}) == 3


def test_a_shadow_decides_nothing(root):
    shadow = {"name": "s", "model": "a", "role": "shadow", "share": 0.1}
    assert digest(root, members=[{"name": "a"}, {"name": "b"}, shadow]) == digest(root)


def test_two_features_of_one_name_decide_both(root, monkeypatch):
    names = []
    for place in ("left_of_theirs", "right_of_theirs"):
        decides = classmethod(lambda cls, _: cls.decided)
        module = ModuleType(place)
        module.Odd = type("Odd", (Feature,), {"__module__": place, "decided": 1, "decides": decides})
        monkeypatch.setitem(sys.modules, place, module)
        names.append(f"{place}:Odd")
    found = {digest(root, features={name: {} for name in names})}
    for place in ("left_of_theirs", "right_of_theirs"):
        monkeypatch.setattr(sys.modules[place].Odd, "decided", 2)
        found.add(digest(root, features={name: {} for name in names}))
    assert len(found) == 3


def test_the_cpu_decides_where_other_machines_share_the_entries(root, monkeypatch):
    def digests(arithmetic):
        monkeypatch.setattr(feature, "arithmetic", lambda _: arithmetic)
        return digest(root), digest(root, cache={"redis": "redis://a"})

    (alone, shared), (also_alone, not_shared) = digests("exact int8, bf16"), digests("saturating int8, f32")
    assert alone == also_alone
    assert shared != not_shared
