import dataclasses
import math

import pytest

from ensemble_capacity.load.load import Arrivals, Closed
from ensemble_capacity.load.measure import Duration, is_stable, measure, row, window
from ensemble_capacity.load.records import LOST, RIGHT, quantile
from ensemble_capacity.load.search import Trial, highest, search
from packages.capacity.tests.load.loads import made, target
from tests.local_servers import HttpServer, Reply

TARGET = target("http://127.0.0.1:9", batch=2)


@pytest.mark.parametrize(
    ("thirds", "expected"),
    [
        ([(100, 0.010)] * 3, True),
        ([(100, 0.010), (109, 0.010), (100, 0.0109)], True),
        ([(100, 0.010), (111, 0.010), (100, 0.010)], False),
        ([(100, 0.010), (100, 0.0111), (100, 0.010)], False),
        ([(100, 0.010), (0, 0.010), (100, 0.010)], False),
    ],
)
def test_a_load_is_stable_if_its_thirds_are_alike(thirds, expected):
    ends = (part + n / count for part, (count, _) in enumerate(thirds) for n in range(count))
    took = [seconds for count, seconds in thirds for _ in range(count)]
    found = made(*((end - each, end - each, end, 200, 0) for end, each in zip(ends, took, strict=True)))
    assert is_stable(found, 0.0, 3.0) == expected


def test_a_window_has_the_rate_and_the_latency_of_what_succeeded():
    found = made((0, 0, 0.1, 200, 0), (0, 0, 0.3, 200, 0), (0, 0, 0.4, 503, 0), (0.9, 0.9, 1.0, 200, 0))
    assert window(found, 0, 1) == (2, pytest.approx(200))
    assert window(found, 2, 3) == (0, 0)


def test_a_percentile_is_one_of_the_values():
    assert [quantile([1.0, 2.0, 3.0, 4.0], percent) for percent in (1, 25, 50, 75, 99)] == [1, 1, 2, 3, 4]
    assert math.isnan(quantile([], 50))


def test_a_row_counts_what_was_due_from_when_it_was_due():
    found = made(
        (0.5, 0.5, 0.9, 200, RIGHT),
        (1.0, 1.001, 1.2, 200, RIGHT),
        (1.5, 1.5, 1.6, 200, 0),
        (1.6, 1.6, 1.7, 503, 0),
        (1.9, 1.9, 2.4, 200, 0),
        (2.5, 2.5, 2.6, 200, 0),
    )
    one = row(
        found,
        1.0,
        2.0,
        dataclasses.replace(TARGET, labels=("a",)),
        Closed(3),
        percentile=99,
        stable=True,
        first_error="503",
        cpu_s=0.4,
    )
    assert (one.mode, one.value, one.requests, one.failed) == ("concurrency", 3, 3, 1)
    assert one.outcomes == {"200": 3, "503": 1}
    # What came back meanwhile.
    assert (one.requests_per_s, one.images_per_s) == (2, 4)
    assert one.percentiles_ms == {"p50": pytest.approx(200), **dict.fromkeys(("p90", "p95", "p99"), pytest.approx(500))}
    assert one.slo_percentile_ms == math.inf
    assert one.late_p99_ms == pytest.approx(1)
    assert one.top1 == pytest.approx(100 / 3)


def test_requests_of_before_that_fail_only_now_are_failures():
    found = made((0.5, 0.5, 0.9, 503, 0), (0.5, 0.5, 1.5, 200, 0), (0.5, 0.5, 3.0, -2, 0), (0.6, 0.6, 3.0, -2, 0))
    one = row(found, 1.0, 2.0, TARGET, Closed(3), percentile=99, stable=True, first_error="no response")
    assert (one.requests, one.failed, one.outcomes) == (0, 2, {"timeout": 2})
    assert one.slo_percentile_ms == math.inf


@pytest.mark.parametrize(
    ("late_s", "cpu_s", "verdict"), [(0, 0.5, "ok"), (0.005, 0.5, "ok"), (0.02, 0.5, "late"), (0, 0.9, "busy")]
)
def test_a_row_says_when_the_client_was_the_bottleneck(late_s, cpu_s, verdict):
    found = made(*((n / 100, n / 100 + late_s, n / 100 + 0.1, 200, 0) for n in range(100)))
    one = row(found, 0, 1, TARGET, Arrivals(100), stable=True, first_error="", cpu_s=cpu_s)
    assert one.client.startswith(verdict)
    assert one.name == "100/s"


def test_a_fixed_time_is_measured_after_the_warm_up():
    with HttpServer(lambda asked: Reply(delay_s=0.01)) as server:
        one = measure(target(server.url), Closed(2), Duration(0.2, 0.5))
    assert one.seconds == pytest.approx(0.5)
    assert one.requests < len(server.asked)
    assert one.percentiles_ms["p50"] > 10
    assert one.client_cpu_ms > 0


def holds_up_to(capacity, peak=200.0, closed_s=0.16):
    """A server whose p99 is 40 ms up to a rate, and 400 ms above; each load that is measured."""
    loads = []

    def run(mode):
        loads.append(mode)
        if isinstance(mode, Closed):
            # The first of them were due before the measurement began.
            due = (n / peak for n in range(-int(peak * closed_s), int(peak)))
            found = made(*((at, at, at + closed_s, 200, 0) for at in due))
        else:
            took = 0.04 if mode.rate <= capacity else 0.4
            found = made(*((n / 100, n / 100, n / 100 + took, 200 if capacity else LOST, 0) for n in range(100)))
        return row(found, 0, 1, TARGET, mode, percentile=99, stable=True, first_error="")

    return run, loads


@pytest.mark.parametrize("capacity", [1.5, 20.0, 97.0, 160.0, 195.0, 500.0])
def test_the_search_finds_the_highest_rate_that_holds_and_confirms_it(capacity):
    run, loads = holds_up_to(capacity)
    assert search(50, run)
    assert isinstance(loads[0], Closed)
    assert loads[-1].rate <= capacity
    assert loads[-1].rate >= 0.95 * min(capacity, 200)
    # With other requests than before.
    assert loads[-1].seed != loads[-2].seed


def test_a_rate_above_what_a_closed_loop_reaches_in_time_is_found():
    run, loads = holds_up_to(900.0, closed_s=0.04)
    assert search(50, run)
    assert 0.95 * 900 <= loads[-1].rate <= 900


def test_where_nothing_holds_nothing_is_found():
    run, loads = holds_up_to(0.0)
    assert not search(50, run)
    assert 2 < len(loads) < 12


def test_a_rate_that_held_by_luck_is_lowered():
    run, loads = holds_up_to(100.0)

    def moody(mode):
        if isinstance(mode, Arrivals) and mode.seed == 0:
            return run(dataclasses.replace(mode, rate=0.9 * mode.rate))
        return run(mode)

    assert search(50, moody)
    assert [mode.rate <= 100 for mode in loads[-2:]] == [False, True]


@pytest.mark.parametrize("first", [0.5, 6.0, 77.0, 76.0, 3000.0])
@pytest.mark.parametrize("answered", [0.05, 1.0])
def test_the_highest_rate_is_found_as_closely_from_any_first_rate(first, answered):
    """A server that holds 76 requests/s, and that answers little or much when it gets more."""
    tried = []

    def at(rate):
        tried.append(rate)
        return Trial(rate, rate if rate <= 76 else 76 * answered, rate <= 76)

    assert 76 / 1.05 <= highest(at, first) <= 76
    assert len(tried) <= 16


def test_a_rate_that_does_not_hold_is_not_tried_again():
    tried = []

    def at(rate):
        tried.append(rate)
        return Trial(rate, rate, rate <= 76)

    assert 76 / 1.05 <= highest(at, 70.0, 90.0) <= 76
    assert max(tried) < 90
