import numpy as np

from deployments.contract.answer import Answer, Classification
from deployments.contract.batch import Batch
from deployments.contract.errors import InvalidImage
from deployments.contract.item import Item, Vote
from deployments.observe.stats import MOST_DURATIONS, WINDOW_S, Stats


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
    for _ in range(2 * MOST_DURATIONS):
        stats.request("ok", 1.0)
    clock.now += 1
    assert len(stats.recent()) == WINDOW_S
    assert stats.recent()[-1].outcomes["ok"] == 2 * MOST_DURATIONS + 1
    assert len(stats.recent()[-1].durations) == MOST_DURATIONS


def test_a_batch_is_counted_by_its_size_and_by_what_its_members_said():
    clock = Clock()
    stats = Stats(clock)
    agreed = Item(votes={"a": Vote(1, 0.9), "b": Vote(2, 0.9)})
    alone = Item(votes={"a": Vote(2, 0.9)}, missing={"b": "deadline_exceeded"})
    stats.batch(Batch([answer(1), answer(2)], (agreed, Item(error=InvalidImage("no")), alone)), 0.5)
    stats.batch(Batch([answer(1)], (agreed,)), 0.25)
    clock.now += 1
    [second] = stats.recent()
    assert dict(second.sizes) == {3: 1, 1: 1}
    assert second.longest_wait_s == 0.5
    assert dict(second.votes) == {("a", True): 3, ("b", False): 2}
    assert dict(second.missing) == {"b": 1}
