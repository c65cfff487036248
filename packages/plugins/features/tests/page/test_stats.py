import numpy as np
from msgspec.structs import replace

from deployments.contract.answer import Answer, Classification
from deployments.contract.batch import Batch
from deployments.contract.errors import InvalidImage
from deployments.contract.item import Item, MemberPrediction, Note, Step
from ensemble_features.page.stats import MAX_DURATIONS, PERIODS, WINDOW_S, Period, Stats
from ensemble_serving.answer import CacheStatus


class Clock:
    def __init__(self):
        self.now = 100.5

    def __call__(self):
        return self.now


def answer(index):
    told = Classification(label="x", index=index, probability=1, top=(), model_versions={}, trace_id="0" * 32)
    return Answer(told, np.ones(1, np.float32))


def test_each_second_is_counted_apart_and_forgotten_after_a_minute():
    clock = Clock()
    stats = Stats(clock)
    stats.request("ok", 0.1)
    stats.request("overloaded", 0.2)
    # The second that is not over yet is not told.
    assert stats.recent() == []
    clock.now = 102.5
    stats.request("ok", 0.3)
    clock.now = 103
    first, empty, third = stats.recent()
    assert (dict(first.outcomes), first.durations) == ({"ok": 1, "overloaded": 1}, [0.1, 0.2])
    assert (dict(empty.outcomes), third.durations) == ({}, [0.3])
    clock.now = 103 + WINDOW_S
    assert len(stats.recent()) == WINDOW_S
    assert not any(second.outcomes for second in stats.recent())


def test_what_is_kept_is_bounded():
    clock = Clock()
    stats = Stats(clock)
    for second in range(3 * WINDOW_S):
        clock.now = 100 + second
        stats.request("ok", 1.0)
    for _ in range(2 * MAX_DURATIONS):
        stats.request("ok", 1.0)
    clock.now += 1
    stats.request("ok", 1.0)
    assert len(stats.recent()) == WINDOW_S
    assert all(second.outcomes for second in stats.recent())
    assert stats.recent()[-1].outcomes["ok"] == 2 * MAX_DURATIONS + 1
    assert len(stats.recent()[-1].durations) == MAX_DURATIONS


def test_a_batch_is_counted_by_its_size_and_by_what_its_members_said():
    clock = Clock()
    stats = Stats(clock)
    agreed = Item(predictions={"a": MemberPrediction(1, 0.9), "b": MemberPrediction(2, 0.9)})
    alone = Item(predictions={"a": MemberPrediction(2, 0.9)}, missing={"b": "deadline_exceeded"})
    stats.batch(Batch([answer(1), answer(2)], (agreed, Item(error=InvalidImage("no")), alone)), 0.5)
    stats.batch(Batch([answer(1)], (agreed,)), 0.25)
    clock.now += 1
    [second] = stats.recent()
    assert dict(second.sizes) == {3: 1, 1: 1}
    assert second.longest_wait_s == 0.5
    assert dict(second.predictions) == {("a", True): 3, ("b", False): 2}
    assert dict(second.missing) == {"b": 1}


def test_a_cascade_a_cache_and_the_nodes_are_counted():
    clock = Clock()
    stats = Stats(clock)

    # Every image of a batch shares a node's note.
    steps = (Step(Note("decode", 0, 5, {}, ("here", 1))), Step(Note("combine", 5, 7, {}, ("here", 1))))

    def answered(asked, hit, load_shed=None):
        known = replace(answer(1).classification, asked=asked, cache=CacheStatus(hit), load_shed=load_shed)
        return answer(1)._replace(classification=known)

    answers = [answered(("a",), True), answered(("a", "b"), False), answered(("a",), False, load_shed=True)]
    stats.batch(Batch(answers, (Item(steps=steps),) * 3), 0.1)
    clock.now += 1
    [second] = stats.recent()
    assert (second.exits, second.load_shed) == ({"a": 2, "b": 1}, 1)
    assert second.cache == {"hit": 1, "miss": 2}
    assert second.nodes_ns == {"decode": 5, "combine": 2}


def test_ten_minutes_are_kept_by_ten_seconds():
    clock = Clock()
    stats = Stats(clock)
    for duration in (0.1, 0.3):
        stats.request("ok", duration)
    stats.request("overloaded", 0.2)
    present, missing = Item(predictions={"a": MemberPrediction(1, 0.9)}), Item(missing={"a": "late"})
    stats.batch(Batch([answer(1)] * 2, (present, missing)), 0.5)
    # The second that has not ended is not counted.
    assert stats.past() == []
    clock.now = 101
    assert [(each.answered, each.p99_ms) for each in stats.past()] == [(2, None)]
    clock.now = 125
    stats.request("ok", 0.5)
    clock.now = 131
    first, empty, third, last = stats.past()
    assert first == Period(2, 1, 298.0, {"a": 1}, {"a": 1})
    assert (empty, last) == (Period(), Period(seconds=1))
    assert (third.answered, third.p99_ms) == (1, 500.0)
    assert stats.past() == [first, empty, third, last]
    clock.now = 100 + 10 * PERIODS + 5
    assert len(stats.past()) == PERIODS
    assert stats.past()[1] == third
