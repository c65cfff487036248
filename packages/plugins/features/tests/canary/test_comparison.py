import asyncio

import numpy as np
import pytest

from deployments.contract.item import Item
from ensemble_features.canary import flow
from ensemble_features.canary.feature import counters
from ensemble_features.canary.flow import Comparison
from ensemble_features.canary.settings import CanaryConfig
from ensemble_features.canary.trial import Trial
from ensemble_features.record import Record, Trials
from packages.plugins.features.tests.canary.test_canary import Breaks, Says, Waits, stable
from tests.batches import batch

NUMBERS = iter(range(1, 10_000))


def compared(canary, first=None):
    trial = Trial("a", CanaryConfig(version=2, share=0.5, least=1), counters())
    trial.note("canary", [Item()], [False], 0.1)
    return Comparison(trial, {"canary": canary, "stable": first or stable()}, "small", seed=0), trial


def tried(queued_ns, members):
    return Item(queued_ns=queued_ns).with_note(Trials(members))


def copies(count, trials=("a",), **more):
    return [
        (
            batch({"small": np.array([next(NUMBERS)], np.uint16)}, tried(next(NUMBERS), trials)),
            Record(0, {"a": 1, "b": 0}, trials=trials, **more),
        )
        for _ in range(count)
    ]


async def over(found):
    await asyncio.gather(found._work._task)


class Other(Says):
    """A version that says the second class."""

    async def __call__(self, batch):
        answer = await super().__call__(batch)
        answer.payload[:, 1] += 1
        return answer


def other():
    return Other("a-canary", 2, 0.1)


async def test_both_versions_are_asked_about_the_images_that_the_canary_answered():
    first, second = stable(), other()
    found, trial = compared(second, first)
    found.ask([*copies(2), *copies(1, trials=())], None)
    await over(found)
    assert first.seen == second.seen
    assert len(first.seen[0]) == 2
    agreed = trial.figures().agreed
    assert (agreed.count, agreed.total, trial.rolled_back) == (0, 2, "")
    for _ in range(4):
        found.ask(copies(4), None)
        await over(found)
    assert trial.rolled_back == "answers"


async def test_a_canary_that_takes_longer_than_it_may_is_slow_and_one_that_breaks_is_not_compared():
    found, trial = compared(Waits("a-canary", 2, 0.1))
    for _ in range(12):
        found.ask(copies(1), 50)
        await over(found)
    assert (trial.rolled_back, trial.figures().agreed.total) == ("latency", 0)
    for canary, first in ((Breaks(TimeoutError("x")), stable()), (other(), Waits("a", 1, 0.1))):
        found, trial = compared(canary, first)
        for _ in range(12):
            found.ask(copies(1), 20)
            await over(found)
        assert (trial.rolled_back, trial.figures().agreed.total) == ("", 0)


async def test_one_batch_is_compared_at_a_time_and_later_a_part_of_them(monkeypatch):
    second = Waits("a-canary", 2, 0.1)
    found, trial = compared(second)
    items = [Item().with_note(Trials(("a",))), Item(), Item().with_note(Trials(("b", "a")))]
    assert found.draw(items) == [0, 2]
    found.ask(copies(1), None)
    assert found.draw(items) == []
    second.gate.set()
    await over(found)
    monkeypatch.setattr(flow, "AT_FIRST", 1)
    assert trial.compared == 1
    assert sum(found.draw(items) == [0, 2] for _ in range(1000)) == pytest.approx(100, abs=40)
