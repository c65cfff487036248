import pytest

from deployments.contract.errors import ConfigurationError
from deployments.members import openvino_autotune
from graph.config import parse
from scripts.variants import choices


@pytest.fixture
def costs(tmp_path, monkeypatch):
    """What the versions cost, as if they had been measured."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = {1: 6.0, 2: 2.0}
    monkeypatch.setattr(openvino_autotune, "_measured_ms", lambda models: [found[each.version] for each in models])
    return found


def lines(**member):
    return list(choices(parse({"members": [{"name": "resnet", **member}]})))


def test_the_choice_and_what_would_be_faster_are_stated(costs):
    served = "resnet: version 2 (int8); of CPU time per image here, version 1 takes 6.0 ms, version 2 takes 2.0 ms"
    assert lines(precision="fastest") == [served]
    assert lines(precision="float") == ["resnet: version 1 (float)"]
    assert lines(version=2) == []
    [hint] = lines(version=1)
    assert "version 2 (int8) would be 3.0 times as fast here: give the member `precision: fastest`" in hint
    assert lines(version_policy="latest") == []


def test_a_small_gain_is_worth_no_word(costs):
    costs[2] = 5.5
    assert lines(version=1) == []


def test_a_variant_that_is_not_there_stops_the_start():
    with pytest.raises(ConfigurationError, match="no such variant"):
        list(choices(parse({"members": [{"name": "resnet13", "precision": "float"}]})))
