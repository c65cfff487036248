"""Cores are shared evenly, and time passes by events."""

from __future__ import annotations

import pytest

from ensemble_capacity.plan.clock import Machine, Pool


def finished(cores, *jobs):
    """When each job of CPU seconds on threads is finished."""
    machine, times = Machine(cores), {}
    for number, (work, threads) in enumerate(jobs):
        machine.compute(work, threads, lambda number=number: times.update({number: machine.now}))
    machine.run(lambda: False)
    return [times[number] for number in range(len(jobs))]


def test_a_job_takes_its_cpu_time_over_its_threads():
    assert finished(2, (1.0, 1)) == pytest.approx([1.0])
    assert finished(2, (1.0, 2)) == pytest.approx([0.5])


def test_jobs_that_fit_the_cores_do_not_slow_each_other_down():
    assert finished(2, (1.0, 1), (2.0, 1)) == pytest.approx([1.0, 2.0])


def test_more_threads_than_cores_are_slowed_down_alike():
    # Three threads on two cores run at 2/3 until the first ends at 1.5 s; the others then have a core each.
    assert finished(2, (1.0, 1), (2.0, 1), (2.0, 1)) == pytest.approx([1.5, 2.5, 2.5])


def test_a_timer_between_two_jobs_takes_nothing_from_them():
    machine, seen = Machine(1), []
    machine.compute(1.0, 1, lambda: seen.append(("job", machine.now)))
    machine.at(0.25, lambda: machine.compute(0.25, 1, lambda: seen.append(("late", machine.now))))
    machine.run(lambda: False)
    # From 0.25 s on both run at half speed: the late one needs 0.5 s.
    assert [name for name, _ in seen] == ["late", "job"]
    assert [time for _, time in seen] == pytest.approx([0.75, 1.25])


def test_a_pool_does_jobs_in_order_and_counts_them():
    machine, times = Machine(4), []
    pool = Pool(machine, 2)
    for _ in range(3):
        pool.do(1.0, lambda: times.append(machine.now))
    machine.run(lambda: False)
    assert times == pytest.approx([1.0, 1.0, 2.0])
    assert pool.used_s == machine.used_s == 3.0
    assert pool.busy(2.0) == pytest.approx(0.75)
