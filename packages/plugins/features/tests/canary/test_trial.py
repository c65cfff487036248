import itertools
import logging

import pytest

from deployments.contract.caller import ADDRESS, ANYONE, Caller
from deployments.contract.item import Item
from deployments.labeler import Labeler, LabelerSettings
from deployments.reconfigure import LiveSettings
from ensemble_features.canary.feature import counters
from ensemble_features.canary.settings import CanaryConfig, CanarySettings
from ensemble_features.canary.trial import Trial
from ensemble_features.record import Record

FRESH = itertools.count(1000)
TRACE_PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def trial(share=0.5, version=3, **more):
    return Trial("a", CanaryConfig(version=version, share=share, **more), counters())


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


def fails(found, failed, seconds=0.1, requests=None, **caller):
    """Note a call for each image, of requests of their own, or of the named ones."""
    for name, each in zip(requests or [next(FRESH) for _ in failed], failed, strict=True):
        found.note("canary", [sent(name, **caller)], [each], seconds)


def sent(number, **caller):
    # All are of one trace, as the requests of a batch job may be.
    return Item(TRACE_PARENT, queued_ns=number, caller=Caller(**caller))


def compares(found, canary, stable, others, label=None, name="", request=None):
    """Compare the two versions' classes of an image that has not been seen, with those of the other members."""
    number = next(FRESH)
    record = Record(stable, {"a": canary, **{f"b{row}": index for row, index in enumerate(others)}}, label=label)
    item = sent(request or number, name=name)
    found.answered(item.caller, item.request, str(number).encode(), (canary, stable), record)
    found.judge()
    return record


def test_a_canary_that_fails_too_often_is_rolled_back_once_and_said_once(caplog):
    found = trial(1.0, max_failures=0.1, least=20)
    with caplog.at_level(logging.ERROR):
        fails(found, [True] * 19)
        assert found.share == 1.0
        fails(found, [True])
        fails(found, [True] * 30)
    assert (found.share, found.rolled_back) == (0.0, "failures")
    assert not found.takes(b"x", ANYONE)
    assert found._counters.rollbacks.counts == {("a", "failures"): 1}
    assert caplog.text.count("rolled back") == 1
    assert found.found == "it failed on 20 of 20 images, more than max_failures = 0.1"
    assert found.found in caplog.text


def test_failures_within_the_bound_end_nothing_and_a_canary_that_becomes_bad_late_is_found():
    found = trial(max_failures=0.1, least=10)
    fails(found, ([False] * 9 + [True]) * 100)
    assert not found.rolled_back
    fails(found, [True] * 40)
    assert found.rolled_back == "failures"


def test_a_call_that_fails_is_one_failure_and_images_that_fail_beside_others_are_as_many():
    calls, images = trial(), trial()
    for found in (calls, images):
        fails(found, [False] * 1000)
    for _ in range(2):
        calls.note("canary", [sent(next(FRESH)) for _ in range(16)], [True] * 16, 0.1)
        images.note("canary", [sent(next(FRESH)) for _ in range(16)], [True] * 15 + [False], 0.1)
    assert (calls.rolled_back, images.rolled_back) == ("", "failures")
    for _ in range(18):
        calls.note("canary", [sent(next(FRESH)) for _ in range(16)], [True] * 16, 0.1)
    assert calls.rolled_back == "failures"


@pytest.mark.parametrize("canary_s", [0.35, 0.65])
def test_times_for_the_same_images_decide_whatever_the_sizes_of_batches(canary_s):
    found = trial(max_slowdown=2.0, least=1)
    fails(found, [False])
    # A hundred calls for one image, which are as fast as those of the stable version.
    for _ in range(100):
        found.took([sent(next(FRESH))], 0.01, 0.01)
    for _ in range(40):
        found.took([sent(next(FRESH)) for _ in range(16)], canary_s, 0.2)
        found.judge()
    assert found.rolled_back == ("latency" if canary_s > 0.4 else "")
    assert not found.rolled_back or "in batches of 16 to 31 images it took more than max_slowdown = 2.0" in found.found


def test_one_request_does_not_decide_however_many_images_it_has():
    found = trial(least=1)
    fails(found, [True] * 640, requests=[7] * 640)
    for _ in range(64):
        found.took([sent(7)] * 10, 60.0, 0.1)
        compares(found, 1, 2, [2, 2], request=7)
        compares(found, 1, 2, [], request=7)
    assert not found.rolled_back
    fails(found, [True] * 6)
    assert found.rolled_back == "failures"


@pytest.mark.parametrize("who", ["name", "address"])
def test_no_client_decides_where_there_are_others_and_the_log_warns(who, caplog):
    def by(name):
        return {"name": name} if who == "name" else {"headers": {ADDRESS: name}}

    found = trial(least=1)
    fails(found, [False] * 3, **by("good"))
    fails(found, [True] * 500, **by("hostile"))
    assert (found.rolled_back, found.found[:29]) == ("", "only by one client's images: ")
    assert caplog.text.count("is suspect") == 1
    fails(found, [True] * 14, **by("good"))
    assert found.rolled_back == "failures"


def test_a_canary_that_the_others_disagree_with_is_rolled_back_and_one_that_is_better_is_not():
    wrong, better = trial(least=1), trial(least=1)
    for found in (wrong, better):
        fails(found, [False])
    for number in range(100):
        compares(wrong, 1, 2, [2, 3] if number % 10 else [1, 3])
        compares(better, 1, 2, [1, 1] if number % 2 else [2, 1, 2])
    assert (wrong.rolled_back, better.rolled_back) == ("answers", "")
    assert "the other members agree with the stable version alone on" in wrong.found


def test_without_other_members_a_canary_may_differ_on_half_of_the_images():
    for differs, rolled_back in ((0.4, ""), (0.96, "answers")):
        found = trial(least=1)
        fails(found, [False])
        for number in range(200):
            compares(found, 1 if number % 25 < differs * 25 else 2, 2, [])
        assert found.rolled_back == rolled_back


def test_true_labels_decide_and_outweigh_the_other_members():
    wrong, right = trial(least=1), trial(least=1)
    for found in (wrong, right):
        fails(found, [False])
    # Labels may come before or after the comparison.
    for _ in range(30):
        compares(wrong, 1, 2, [3], label=2)
        compares(right, 1, 2, [3]).set_label(1)
    assert (wrong.rolled_back, right.rolled_back) == ("answers", "")
    for number in range(100):
        compares(right, 1, 2, [2], label=None if number % 10 else 2)
    assert right.rolled_back == ""
    labelled = right.figures().labelled
    assert (labelled.canary_only, labelled.stable_only) == (30, 10)
    for _ in range(10):
        compares(right, 1, 2, [2], label=2)
    assert right.rolled_back == "answers"


def test_an_image_that_comes_again_is_compared_once():
    found = trial(least=1)
    fails(found, [False])
    for _ in range(100):
        found.answered(ANYONE, str(next(FRESH)), b"the same", (1, 2), Record(2, {"a": 1, "b": 2}))
        found.judge()
    assert not found.rolled_back


def test_how_long_it_is_waited_for_goes_by_how_long_the_other_version_takes_and_by_how_many_images():
    found = trial(max_slowdown=2.0, least=10)
    for _ in range(9):
        found.note("stable", [sent(1)] * 4, [False] * 4, 0.4)
    assert found.patience_s(1) is None
    found.note("stable", [sent(1)], [False], 0.1)
    assert found.patience_s(1) == pytest.approx(2.0)
    assert found.patience_s(64) == pytest.approx(128.0)
    for _ in range(100):
        found.note("stable", [sent(1)], [False], 0.001)
    assert found.patience_s(1) == 0.25


def test_new_settings_begin_anew():
    found = trial(1.0, least=1)
    fails(found, [True] * 10)
    assert found.share == 0.0
    found.settings = CanarySettings(share=0.2)
    assert (found.share, found.rolled_back) == (0.2, "")
    fails(found, [False] * 60)
    assert found.share == 0.2


@pytest.mark.parametrize("key", ["header:", "header:a b", "cookie:a", "Image"])
def test_a_key_is_the_image_or_a_header(key):
    with pytest.raises(ValueError, match="key"):
        CanaryConfig(version=1, share=0.1, key=key)


def test_a_canary_that_was_rolled_back_stays_so_until_its_own_settings_change():
    trial = Trial("a", CanaryConfig(version=2, share=0.5, least=1), counters())
    settings = LiveSettings({"canaries.a": trial, "Labeler": Labeler(LabelerSettings(), ("x", "y"))})
    settings.apply({"canaries.a": {"share": 2}})
    assert (settings.refused, trial.share) == (1, 0.5)
    for number in range(1, 10):
        trial.note("canary", [Item(queued_ns=number)], [True], 0.1)
    settings.apply({"Labeler": {"top_k": 2}})
    assert trial.share == 0.0
    settings.apply({"canaries.a": {"share": 0.1}})
    assert trial.share == 0.1
