import logging

import pytest

from deployments.contract.caller import ANYONE, Caller
from deployments.contract.rollout import CanaryConfig, CanarySettings
from graph.capabilities.canary.metrics import CanaryMetrics
from graph.capabilities.canary.trial import Trial


def trial(share=0.5, version=3, **more):
    return Trial("a", CanaryConfig(version=version, share=share, **more), CanaryMetrics())


def user(name):
    return Caller(headers={"x-user": name})


def test_a_share_of_the_images_is_drawn_and_always_the_same():
    images = [str(number).encode() for number in range(4000)]
    drawn = [trial(0.1).takes(image, ANYONE) for image in images]
    assert 320 < sum(drawn) < 480
    assert drawn == [trial(0.1).takes(image, ANYONE) for image in images]
    assert drawn != [trial(0.1, version=4).takes(image, ANYONE) for image in images]
    assert [trial(share).takes(b"x", ANYONE) for share in (0, 1)] == [False, True]


def test_whoever_is_drawn_stays_so_when_the_share_grows():
    few, more = trial(0.1), trial(0.3)
    assert all(
        more.takes(image, ANYONE) for image in map(str.encode, map(str, range(2000))) if few.takes(image, ANYONE)
    )


def test_a_header_decides_for_all_images_of_its_value_and_without_it_the_image():
    found = trial(key="header:X-User")
    by_user = {name: {found.takes(str(n).encode(), user(name)) for n in range(20)} for name in map(str, range(50))}
    assert all(len(answers) == 1 for answers in by_user.values())
    assert len(set.union(*by_user.values())) == 2
    assert len({found.takes(str(n).encode(), ANYONE) for n in range(50)}) == 2


def test_a_canary_that_fails_too_often_is_rolled_back_once_and_said_once(caplog):
    found = trial(1.0, max_failures=0.1, least=20)
    with caplog.at_level(logging.ERROR):
        found.note("canary", [True] * 19, 0.1)
        assert found.share == 1.0
        found.note("canary", [True], 0.1)
        found.note("canary", [True] * 30, 0.1)
    assert (found.share, found.rolled_back) == (0.0, "failures")
    assert not found.takes(b"x", ANYONE)
    assert found._metrics.rollbacks.counts == {("a", "failures"): 1}
    assert caplog.text.count("rolled back") == 1
    assert "max_failures = 0.1" in caplog.text


def test_failures_within_the_bound_and_those_that_have_left_the_window_end_nothing():
    found = trial(max_failures=0.1, least=10, window=100)
    found.note("canary", [False] * 90 + [True] * 10, 0.1)
    assert not found.rolled_back
    found.note("canary", [False] * 100, 0.1)
    found.note("canary", [True] * 10, 0.1)
    assert not found.rolled_back
    found.note("canary", [True], 0.1)
    assert found.rolled_back == "failures"


def test_a_slow_canary_is_rolled_back_when_there_is_enough_to_compare():
    found = trial(max_slowdown=2.0, least=10)
    found.note("canary", [False] * 20, 0.5)
    found.note("stable", [False] * 9, 0.2)
    found.note("canary", [False], 0.5)
    assert not found.rolled_back
    found.note("stable", [False], 0.2)
    found.note("canary", [False], 0.5)
    assert found._metrics.rollbacks.counts == {("a", "latency"): 1}


def test_a_slow_canary_within_the_bound_goes_on():
    found = trial(max_slowdown=3.0, least=10)
    found.note("stable", [False] * 20, 0.2)
    found.note("canary", [False] * 20, 0.5)
    assert not found.rolled_back


def test_how_long_it_is_waited_for_goes_by_how_long_the_other_version_takes():
    found = trial(max_slowdown=2.0, least=10)
    found.note("stable", [False] * 9, 0.1)
    assert found.patience_s is None
    found.note("stable", [False], 0.1)
    assert found.patience_s == pytest.approx(2.0)
    found.note("stable", [False] * 100, 0.001)
    assert found.patience_s == 0.25


def test_new_settings_begin_anew():
    found = trial(1.0, least=1)
    found.note("canary", [True], 0.1)
    assert found.share == 0.0
    found.settings = CanarySettings(share=0.2)
    assert (found.share, found.rolled_back) == (0.2, "")
    found.note("canary", [False] * 60, 0.1)
    assert found.share == 0.2


@pytest.mark.parametrize("key", ["header:", "header:a b", "cookie:a", "Image"])
def test_a_key_is_the_image_or_a_header(key):
    with pytest.raises(ValueError, match="key"):
        CanaryConfig(version=1, share=0.1, key=key)
