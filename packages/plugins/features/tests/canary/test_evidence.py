import random

import pytest

from ensemble_features.canary.evidence import LIMIT, MOST_CLIENTS, Allowance, Question, Score
from ensemble_features.canary.trial import DIFFERS, LABELS, OTHERS

FAILURES, LATENCY = Question("failures", "", 0.05, 0.1), Question("latency", "", 0.5, 0.9)
RUNS, ANSWERS = 1000, 200


def ends(question, share, seed, answers=ANSWERS, hostile=0.0):
    """After how many answers a canary is rolled back that a share of them speaks against; None if it never is.

    A share of the answers are a hostile client's, and all speak against it.
    """
    drawn, score = random.Random(seed), Score(question)
    for number in range(answers):
        if drawn.random() < hostile:
            score.add("hostile", True)
        else:
            score.add("good", drawn.random() < share)
        if score.without_any_client >= LIMIT:
            return number + 1
    return None


def false_alarms(question, share, hostile=0.0):
    return sum(ends(question, share, seed, hostile=hostile) is not None for seed in range(RUNS))


@pytest.mark.parametrize("question", [FAILURES, LATENCY, OTHERS, LABELS, DIFFERS])
def test_a_canary_at_the_bound_is_looked_at_200_times_and_rolled_back_in_one_run_of_400(question):
    # 2.5 of 1,000 are the most to expect; 9 would come in one of 1,000 cases.
    assert false_alarms(question, question.allowed) < 9


@pytest.mark.parametrize(("question", "good"), [(FAILURES, 0.02), (LATENCY, 0.1), (OTHERS, 0.5), (DIFFERS, 0.4)])
def test_a_good_canary_is_rolled_back_in_at_most_one_run_of_a_thousand_also_beside_a_hostile_client(question, good):
    assert false_alarms(question, good) <= 1
    assert false_alarms(question, good, hostile=0.5) <= 1


@pytest.mark.parametrize(
    ("question", "bad", "within"), [(FAILURES, 1, 10), (FAILURES, 0.3, 150), (LATENCY, 1, 12), (OTHERS, 0.95, 40)]
)
def test_a_bad_canary_is_rolled_back_soon(question, bad, within):
    soon = [ends(question, bad, seed, within) for seed in range(200)]
    assert sum(each is not None for each in soon) >= 190


def test_without_others_the_only_client_decides_and_with_others_they_do():
    score = Score(FAILURES)
    for _ in range(20):
        score.add("one", True)
    assert score.without_any_client == score.total >= LIMIT
    score.add("two", True)
    assert 0 < score.without_any_client < LIMIT
    for _ in range(9):
        score.add("two", True)
    assert score.without_any_client >= LIMIT


def test_the_clients_that_are_told_apart_are_bounded():
    score = Score(FAILURES)
    for number in range(10 * MOST_CLIENTS):
        score.add(str(number), False)
    assert len(score._others) == MOST_CLIENTS


def test_a_part_of_an_answer_counts_as_a_part():
    whole, parts = Score(LATENCY), Score(LATENCY)
    whole.add("", True)
    for _ in range(4):
        parts.add("", True, 0.25)
    assert parts.total == pytest.approx(whole.total)


def test_what_may_still_count_is_remembered_of_the_latest_keys():
    found = Allowance(2, most=3)
    assert [found.take("a") for _ in range(3)] == [True, True, False]
    assert [found.take(key) for key in "bcda"] == [True] * 4


def test_one_clients_good_answers_do_not_make_a_canary_good_where_there_are_others():
    score = Score(LABELS)
    score.add("good", False)
    for _ in range(200):
        score.add("hostile", False)
    assert score.total <= -LIMIT
    assert not score.is_good
    for _ in range(200):
        score.add("good", False)
    assert score.is_good
