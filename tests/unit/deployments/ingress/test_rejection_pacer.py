"""Refusals that are more than a pace allows wait for their turn."""

import asyncio

import pytest

from deployments.contract.errors import Overloaded
from deployments.ingress.admission import AdmissionController
from deployments.ingress.headers import caller
from deployments.ingress.pacing import LEAST_PACE, LONGEST_S, MOST, RejectionPacer, ThroughputEstimator
from deployments.ingress.settings import IngressSettings


class Time:
    """A clock that stands still, and notes how long one would have slept."""

    def __init__(self):
        self.now, self.slept = 100.0, []

    def __call__(self):
        return self.now

    async def sleep(self, seconds):
        self.slept.append(seconds)


async def held(refusals, count, pace=0.0, retry_after_s=60.0):
    return [await refusals.hold(pace, retry_after_s) for _ in range(count)]


async def test_a_second_of_them_leaves_at_once_and_each_other_after_the_one_before():
    time = Time()
    refusals = RejectionPacer(time, time.sleep)
    at_once = round(LEAST_PACE) + 1
    assert await held(refusals, at_once) == [False] * at_once
    assert await held(refusals, 3) == [True] * 3
    assert time.slept == pytest.approx([1 / LEAST_PACE, 2 / LEAST_PACE, 3 / LEAST_PACE])
    time.now += 2
    assert await held(refusals, at_once) == [False] * at_once


async def test_none_waits_longer_than_it_says_or_than_a_few_seconds():
    time = Time()
    refusals = RejectionPacer(time, time.sleep)
    await held(refusals, 200)
    assert max(time.slept) == LONGEST_S
    assert await held(refusals, 1, retry_after_s=1.5)
    assert time.slept[-1] == 1.5


async def test_those_of_large_bodies_have_a_pace_of_their_own():
    time = Time()
    refusals = RejectionPacer(time, time.sleep, least=1.0, most=2)
    assert [await refusals.hold() for _ in range(5)] == [False, False, True, True, True]
    assert time.slept == pytest.approx([1.0, 2.0, 3.0])
    refusals.held = 2
    assert await refusals.hold() is False


async def test_the_faster_images_leave_the_more_refusals_may():
    time = Time()
    refusals = RejectionPacer(time, time.sleep)
    assert await held(refusals, 100, pace=200.0) == [False] * 100


async def test_only_so_many_wait():
    gate, time = asyncio.Event(), Time()

    async def sleep(_):
        await gate.wait()

    refusals = RejectionPacer(time, sleep)
    waiting = [asyncio.create_task(refusals.hold(0.0, 60.0)) for _ in range(MOST + 100)]
    await asyncio.sleep(0)
    assert refusals.held == MOST
    gate.set()
    assert sum(await asyncio.gather(*waiting)) == MOST
    assert refusals.held == 0


@pytest.mark.parametrize("headers", [{}, {"idempotency-key": "mine"}])
async def test_a_place_that_becomes_free_meanwhile_is_taken_whatever_a_request_is_called(headers):
    admission = AdmissionController(IngressSettings(max_in_flight=1))
    anyone, free, time = caller(headers, "", "key"), [], Time()

    async def sleep(seconds):
        await time.sleep(seconds)
        admission.images = 0 if free else 1

    admission._refusals = RejectionPacer(time, sleep)
    admission.images = 1
    await held(admission._refusals, round(LEAST_PACE) + 1)
    with pytest.raises(Overloaded):
        async with admission.arriving(by=anyone):
            raise AssertionError
    assert len(time.slept) == 1
    free.append(True)
    async with admission.arriving(by=anyone):
        pass


def test_no_place_is_kept_for_who_was_refused_and_may_never_come_again(monkeypatch):
    monkeypatch.setattr(ThroughputEstimator, "pace", 1000.0)
    admission = AdmissionController(IngressSettings(max_in_flight=8))
    admission.images = 8
    for number in range(20):
        with pytest.raises(Overloaded):
            admission.check(by=caller({"idempotency-key": str(number)}, "", "key"))
    admission.images = 7
    admission.check()
