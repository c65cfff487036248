from __future__ import annotations

from pathlib import Path

from deployments.repository.repository import find
from ensemble_models.costs import Cost
from ensemble_models.doctor.software import compare, versions
from graph.config import parse
from packages.models.tests.tiny import add, constant


def test_the_versions_of_a_member_are_measured_on_this_machine(tmp_path: Path) -> None:
    for precision in ("FP32", "FP16", "INT8"):
        add(tmp_path, "one", constant([0, 1, 0]), precision)
    add(tmp_path, "two", constant([0, 1, 0]), "FP16")
    config = parse({"model_repository": str(tmp_path), "members": [{"name": "one"}, {"name": "two"}]})
    [found] = versions(config)
    assert found.what.startswith("member one: version 3 (INT8) ")
    assert "version 1 (FP32) " in found.what
    assert "version 2 (FP16) " in found.what


def test_a_float_version_that_takes_less_time_suits_the_cpu(tmp_path: Path) -> None:
    for precision in ("FP16", "INT8"):
        add(tmp_path, "m", constant([0, 1, 0]), precision)
    models, fast, slow = [find(tmp_path, "m", 2), find(tmp_path, "m", 1)], Cost(7.2, 7.0, 7.4), Cost(9.6, 9.0, 9.9)
    found = compare("m", models, [slow, fast])
    assert (found.verdict, found.remedy) == ("look", "version 1 suits this CPU: set `version` of the member")
    assert compare("m", models, [fast, slow]).verdict == "ok"
    # Nobody is talked out of accuracy.
    assert compare("m", models[::-1], [slow, fast]).verdict == "ok"
