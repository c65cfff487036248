"""Which version is served: variants of a version, versions that were rolled back, and what commands say of both."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from deployments.contract.preprocessing import Preprocessing
from deployments.repository.errors import ModelError
from deployments.repository.repository import DEFAULT_ROOT, Folder, find, remember_rollback, rolled_back
from ensemble_features.canary.feature import remember
from ensemble_models.writing import derived_metadata, describe
from graph.config import EnsembleConfig
from graph.signature import resolve_signatures
from packages.models.tests.tiny import add, constant
from scripts.configuration import doubts


def test_what_is_made_of_a_version_is_its_variant(tmp_path: Path) -> None:
    for number, source in enumerate((None, 1, 2, None), 1):
        more = {} if source is None else derived_metadata(find(tmp_path, "m", source), "INT8", Preprocessing((8, 8)))
        more.pop("precision", None)
        more.pop("classes", None)
        add(tmp_path, "m", constant([1, 0, 0]), "FP16", **more)
        assert find(tmp_path, "m", number).variant_of == (4 if number == 4 else 1)
    assert [each.version for each in Folder(tmp_path).variants("m", 1)] == [1, 2, 3]
    assert [each.version for each in Folder(tmp_path).variants("m", 4)] == [4]


def test_the_bundled_int8_versions_are_variants() -> None:
    assert find(DEFAULT_ROOT, "resnet", 2).variant_of == 1


def test_a_version_that_was_rolled_back_is_not_the_highest(tmp_path: Path) -> None:
    """A canary was rolled back, and the next `ensemble deploy` served it to everybody."""
    for _ in range(3):
        add(tmp_path, "m", constant([1, 0, 0]), "FP16")
    remember_rollback(tmp_path, "m", 3, "answers: it differs\nfrom the stable version")
    remember_rollback(tmp_path, "m", 3, "once more")
    assert rolled_back(tmp_path, "m") == {3: "answers: it differs from the stable version"}
    assert find(tmp_path, "m").version == 2
    assert find(tmp_path, "m", 3).version == 3
    config = EnsembleConfig.model_validate({"model_repository": str(tmp_path), "members": [{"name": "m"}]})
    [doubt] = doubts(config, resolve_signatures(config))
    assert "m serves version 2, because version 3 was rolled back (answers: it differs" in doubt
    for version in (1, 2):
        remember_rollback(tmp_path, "m", version, "failures")
    with pytest.raises(
        ModelError, match=r"every version of model 'm' was rolled back; name one, or edit .*rolled-back"
    ):
        find(tmp_path, "m")


def test_a_rollback_is_remembered_beside_the_model(tmp_path: Path) -> None:
    for _ in range(2):
        add(tmp_path, "m", constant([1, 0, 0]), "FP16")
    canary = {"name": "m", "version": 1, "canary": {"version": 2, "share": 0.5}}
    config = EnsembleConfig.model_validate({"model_repository": str(tmp_path), "members": [canary]})
    remember(config, SimpleNamespace(name="m", rolled_back="latency", found="it is slow"))
    assert rolled_back(tmp_path, "m") == {2: "latency: it is slow"}
    assert find(tmp_path, "m").version == 1


def test_a_written_version_says_where_it_is_in_force(tmp_path: Path) -> None:
    told = describe(add(tmp_path, "m", constant([1, 0, 0]), "FP16"))
    assert "in force: a member of model m without `version` serves version 1 from its next start" in told
