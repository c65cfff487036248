from pathlib import Path

import pytest

from deployments.members import openvino_autotune
from deployments.members.openvino import OpenVino
from deployments.members.precision import choose
from deployments.repository.errors import ModelError
from deployments.repository.repository import DEFAULT_ROOT, Model


def variant(version, precision, **metadata):
    return Model("m", version, Path("m"), {"precision": precision, "variant_of": 1, **metadata})


FLOAT, INT8, UNMEASURED = variant(1, "FP16"), variant(2, "INT8", accuracy={"top1": 80.0}), variant(3, "INT8")


@pytest.mark.parametrize(
    ("variants", "wanted", "took", "chosen"),
    [
        ([FLOAT, INT8], "float", None, 1),
        ([FLOAT, INT8], "int8", None, 2),
        ([FLOAT, INT8, UNMEASURED], "int8", None, 3),
        ([FLOAT, INT8], "fastest", [5.4, 3.7], 2),
        ([FLOAT, INT8], "fastest", [7.2, 7.7], 1),
        # Nobody knows what it loses, so it does not compete.
        ([FLOAT, UNMEASURED], "fastest", None, 1),
        ([FLOAT], "fastest", None, 1),
        ([UNMEASURED], "fastest", None, 3),
        # A calibrated version stands for its kind.
        ([FLOAT, INT8, variant(4, "FP16")], "fastest", [5.4, 3.7], 2),
        ([FLOAT, INT8, variant(4, "FP16")], "float", None, 4),
    ],
)
def test_the_newest_of_the_wanted_kind_or_the_fastest_that_is_known(variants, wanted, took, chosen):
    def costs(models):
        assert took is not None, "nothing was to be compared"
        return took

    found = choose(variants, wanted, costs)
    assert found.model.version == chosen
    assert bool(found.costs) is (took is not None)


def test_a_choice_says_what_is_served_and_what_each_costs():
    text = str(choose([FLOAT, INT8], "fastest", lambda _: [5.41, 3.7]))
    expected = "version 2 (int8); of CPU time per image here, version 1 takes 5.4 ms, version 2 takes 3.7 ms"
    assert text == expected


@pytest.mark.parametrize(
    ("variants", "wanted", "hint"), [([FLOAT], "int8", "ensemble quantize m"), ([INT8], "float", "no")]
)
def test_a_variant_that_is_not_there_is_refused(variants, wanted, hint):
    with pytest.raises(ModelError, match=hint):
        choose(variants, wanted, lambda _: [])


def test_the_highest_version_and_a_choice_among_variants_exclude_each_other():
    with pytest.raises(ValueError, match="version_policy: latest"):
        OpenVino(name="m", precision="int8", version_policy="latest")


def test_the_costs_of_the_bundled_variants_are_measured_once(tmp_path, monkeypatch):
    """By both of a model that ships; which is faster depends on the CPU."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    member = OpenVino(name="resnet", precision="fastest")
    first = member.choice(DEFAULT_ROOT)
    assert set(first.costs) == {1, 2}
    assert min(first.costs.values()) > 0
    monkeypatch.setattr(openvino_autotune, "_measured_ms", lambda *_: pytest.fail("it was measured again"))
    assert member.choice(DEFAULT_ROOT) == first
    assert member.find(DEFAULT_ROOT).version == first.model.version
    assert OpenVino(name="resnet", version=1, precision="int8").find(DEFAULT_ROOT).version == 2
    assert OpenVino(name="resnet", version=2, precision="float").find(DEFAULT_ROOT).version == 1
    fixed = member.pinned(1)
    assert (fixed.version, fixed.precision, fixed.find(DEFAULT_ROOT).version) == (1, None, 1)
