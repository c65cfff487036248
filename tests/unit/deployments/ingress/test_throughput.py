import pytest

from deployments.ingress.pacing import LONGEST_WAIT_S, VALID_S, ThroughputEstimator


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def leaves(drain, clock, pace, seconds, busy=True):
    for _ in range(int(pace * seconds) + 1):
        drain.left(1, busy)
        clock.now += 1 / pace


def test_the_pace_is_that_of_images_that_leave_under_load(clock):
    drain = ThroughputEstimator(clock)
    assert drain.pace == 0
    leaves(drain, clock, 100, 2)
    assert drain.pace == pytest.approx(100, rel=0.05)


def test_one_standstill_is_no_pace(clock):
    drain = ThroughputEstimator(clock)
    leaves(drain, clock, pace=100, seconds=2)
    clock.now += 8
    leaves(drain, clock, pace=100, seconds=0.2)
    assert drain.pace < 1
    assert drain.proven_pace == pytest.approx(100, rel=0.05)
    leaves(drain, clock, pace=2, seconds=2)
    assert drain.proven_pace == pytest.approx(2, rel=0.05)


def test_a_first_standstill_is_no_pace_either(clock):
    drain = ThroughputEstimator(clock)
    drain.left(1, busy=True)
    clock.now += 8
    drain.left(1, busy=True)
    assert 0 < drain.pace < 1
    assert drain.proven_pace == 0


def test_a_service_with_little_to_do_says_nothing_of_its_pace(clock):
    drain = ThroughputEstimator(clock)
    leaves(drain, clock, 10, 5, busy=False)
    assert drain.pace == 0
    # Nor does the pause before a load.
    leaves(drain, clock, 100, 1)
    assert drain.pace == pytest.approx(100, rel=0.05)


def test_a_pace_of_long_ago_is_forgotten(clock):
    drain = ThroughputEstimator(clock)
    leaves(drain, clock, 100, 1)
    clock.now += VALID_S
    assert drain.pace == 0


def test_who_asks_is_told_a_time_after_what_waits_and_after_the_one_before(clock):
    drain = ThroughputEstimator(clock)
    leaves(drain, clock, 10, 3)
    told = [drain.retry_after_s(50, 1) for _ in range(100)]
    # 50 images at 10 a second, then one each tenth of a second; by up to a quarter sooner.
    assert 5.1 * 0.75 <= told[0] <= 5.2
    assert 15 * 0.75 <= told[-1] <= 15.2
    assert all(wait <= LONGEST_WAIT_S for wait in (drain.retry_after_s(10**6, 1) for _ in range(100)))


def test_without_a_pace_the_least_is_told_and_not_to_all_the_same(clock):
    drain = ThroughputEstimator(clock)
    told = {drain.retry_after_s(5, 2) for _ in range(20)}
    assert len(told) == 20
    assert all(1.5 <= wait <= 2 for wait in told)
