"""The checker of histories: a clean one is possible, and each impossible answer is found."""

from dataclasses import replace

import pytest

from lab.faults.histories import PLANTED, History, Record, planted, violations
from lab.faults.stage import Away, InForce

IN_FORCE = (InForce("a", 1, end=50.0), InForce("a", 2, start=49.0), InForce("a", 3, end=30.0))


def answer(image, version=1, hit_age=None, **more):
    """An answer of member `a`, whose prediction follows from the image and the version."""
    probabilities = [(int(image) + 1) / 10, version / 10]
    cache = {"hit": hit_age is not None, "age_s": hit_age}
    member = {"label": f"class-{image}", "probabilities": probabilities}
    return {
        "label": f"class-{image}",
        "top": [{"index": 0}, {"index": 1}],
        "members": {"a": member},
        "model_versions": {"a": version},
        "cache": cache,
        **more,
    }


def asked(image, at, status=200, user="", **details):
    number = f"r{at}"
    content = answer(image, **details) if status == 200 else {"error": details}
    return Record("image", image, user, number, at, at + 0.5, status, content, number)


def label(kind, subject, at, status, code=""):
    return Record(kind, subject, "", "", at, at + 0.1, status, {"error": {"code": code}} if code else {"accepted": 1})


def history(*records, **more):
    return History(tuple(sorted(records, key=lambda each: each.start)), IN_FORCE, canaries={"a": 3}, **more)


@pytest.fixture
def clean():
    """Two images by turns, a canary that is rolled back, a cached answer, and a label."""
    records = [asked(str(at % 2), at, user="stays") for at in range(20)]
    records += [asked("4", at + 0.25, version=3, user="u") for at in range(10)]
    records += [asked("4", at + 0.25, version=1, user="u") for at in range(10, 15)]
    records += [asked("0", 22, hit_age=4), asked("1", 60, version=2)]
    records += [label("label", "r3", 4, 200), label("audit", "r3", 70, 409, "already_labelled")]
    return history(*records)


def test_a_clean_history_is_possible(clean):
    assert violations(clean) == []


@pytest.mark.parametrize("name", PLANTED)
@pytest.mark.parametrize("seed", range(5))
def test_each_planted_fault_is_found(clean, name, seed):
    plant, rule = PLANTED[name]
    assert rule in {each.rule for each in violations(planted(clean, plant, seed))}


def test_predictions_are_compared_class_by_class():
    one, other = asked("0", 1), asked("0", 2)
    turned = {"label": "class-0", "probabilities": one.answer["members"]["a"]["probabilities"][::-1]}
    answer = {**other.answer, "top": [{"index": 1}, {"index": 0}], "members": {"a": turned}}
    assert not violations(history(one, replace(other, answer=answer)))


def test_an_empty_history_has_no_room_for_a_fault():
    assert [planted(history(), plant, 1) for plant, _ in PLANTED.values()] == [None] * 5


@pytest.mark.parametrize(
    ("rule", "records"),
    [
        ("version", [asked("0", 60, version=1)]),
        ("version", [asked("0", 10, version=2)]),
        ("answer", [asked("0", 1), replace(asked("0", 2), answer={**answer("0"), "label": "class-1"})]),
        ("answer", [replace(asked("0", 1), answered_id="r7")]),
        ("cache", [asked("0", 1), asked("0", 5, hit_age=1)]),
        ("cache", [asked("0", 60, version=2), asked("0", 700, version=2, hit_age=640)]),
        ("feedback", [label("label", "r1", 1, 200), label("audit", "r1", 9, 404, "unknown_request")]),
        ("refusal", [asked("0", 1, 503, code="overloaded")]),
        ("refusal", [asked("0", 1, 500, code="internal")]),
        ("refusal", [asked("0", 1, 0)]),
        ("missing", [asked("0", 1, missing={"b": "no_replica"})]),
    ],
)
def test_what_is_not_possible_is_found(rule, records):
    assert [each.rule for each in violations(history(*records))] == [rule]


def test_what_a_fault_explains_is_possible():
    away = (Away("b", 1, 2), Away("Ingress", 3, 4))
    lost = [label("label", "r1", 1, 200), label("audit", "r1", 9, 404, "unknown_request")]
    assert not violations(history(asked("0", 1.5, missing={"b": "no_replica"}), asked("0", 3, 0), *lost, away=away))
    full = [asked("0", at / 100) for at in range(10)]
    refused = asked("0", 0.2, 503, code="overloaded")
    assert not violations(history(*full, refused, bound=10))
    assert violations(history(*full, refused, bound=11))
    refused = label("label", "r1", 0.2, 503, "overloaded")
    assert not violations(history(*full, refused, bound=10))
    assert violations(history(*full, refused, bound=11))
