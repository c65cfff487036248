import pytest

from lab.experiments.scalability import Law, held_out
from scripts.errors import ScriptError

COUNTS = [1, 2, 4, 8, 16]


def law(rate, contention, coherence):
    return [rate * n / (1 + contention * (n - 1) + coherence * n * (n - 1)) for n in COUNTS]


@pytest.mark.parametrize(("contention", "coherence"), [(0.0, 0.0), (0.1, 0.0), (0.05, 0.002)])
def test_what_made_the_rates_is_found(contention, coherence):
    found = Law.fit(COUNTS, law(100.0, contention, coherence))
    assert found.rate == pytest.approx(100.0)
    assert (found.contention, found.coherence) == (
        pytest.approx(contention, abs=1e-6),
        pytest.approx(coherence, abs=1e-6),
    )


def test_nothing_is_negative_where_throughput_grows_faster_than_numbers():
    found = Law.fit(COUNTS, [100.0, 210.0, 440.0, 900.0, 1900.0])
    assert found.contention == found.coherence == 0.0


def test_disturbances_widen_the_interval_which_holds_the_rate():
    exact = law(100.0, 0.1, 0.001)
    rough = [rate * factor for rate, factor in zip(exact, (1.1, 0.9, 1.05, 0.95, 1.0), strict=True)]
    _, low, high = Law.fit(COUNTS, exact).at(32)
    _, rough_low, rough_high = Law.fit(COUNTS, rough).at(32)
    assert high - low < 1.0 < rough_high - rough_low
    assert rough_low < 100.0 * 32 / (1 + 0.1 * 31 + 0.001 * 32 * 31) < rough_high


def test_a_point_that_is_held_out_is_predicted_by_the_others():
    rates = law(100.0, 0.1, 0.0)
    assert held_out(COUNTS, rates) == pytest.approx(0.0, abs=1e-6)
    assert held_out(COUNTS, [*rates[:-1], rates[-1] / 2]) == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize(("counts", "rates"), [([1, 2, 4], [1.0, 2.0, 3.0]), ([1, 2, 4, 8], [1.0, 2.0, 0.0, 3.0])])
def test_too_little_is_refused(counts, rates):
    with pytest.raises(ScriptError, match="four"):
        Law.fit(counts, rates)
