import pytest

from deployments.contract import sections
from deployments.contract.sections import Section, SectionOwner, Way
from deployments.entry_points import find_class
from ensemble_features.cache import feature
from ensemble_features.cache.feature import identity
from graph.config import parse
from graph.signature import resolve_signatures
from tests.networks import brightness, constant, one_hot, store


def digest(root, *members, **args):
    config = parse(
        {"model_repository": str(root), "members": [{"name": m} for m in members or ("a", "b")], "cache": {}, **args}
    )
    return identity(config, resolve_signatures(config), config.features["cache"])


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


def test_what_a_section_says_of_the_way_decides(root, monkeypatch):
    class Odd(Section):
        odd: int = 1

        def way(self, config):
            return Way(f"only the {self.odd}th")

    class Owner(SectionOwner):
        sections = (Odd,)

    def found_class(group, name, base):
        return Owner if ":" in name else find_class(group, name, base)

    monkeypatch.setattr(sections, "find_class", found_class)
    found = [digest(root, features={f"theirs:{name}": {"odd": 1}}) for name in ("left", "right")]
    both = {"theirs:left": {"odd": 1}, "theirs:right": {"odd": 1}}
    found += [digest(root, features=both), digest(root, features={**both, "theirs:right": {"odd": 2}}), digest(root)]
    assert len(set(found)) == 4


def test_the_cpu_decides_where_other_machines_share_the_entries(root, monkeypatch):
    def digests(arithmetic):
        monkeypatch.setattr(feature, "arithmetic", lambda _: arithmetic)
        return digest(root), digest(root, cache={"redis": "redis://a"})

    (alone, shared), (also_alone, not_shared) = digests("exact int8, bf16"), digests("saturating int8, f32")
    assert alone == also_alone
    assert shared != not_shared
