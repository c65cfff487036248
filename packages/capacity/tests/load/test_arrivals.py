from itertools import chain, islice

import numpy as np
import pytest

from ensemble_capacity.load.load import Arrivals


def gaps(arrivals, count=20_000):
    return np.diff([0.0, *islice(arrivals.offsets(), count)])


@pytest.mark.parametrize(("process", "expected"), [("constant", 0), ("poisson", 1)])
def test_gaps_have_the_rate_and_the_spread_of_their_process(process, expected):
    found = gaps(Arrivals(250, process))
    assert found.min() >= 0
    assert found.mean() == pytest.approx(1 / 250, rel=0.05)
    assert found.std() / found.mean() == pytest.approx(expected, rel=0.05, abs=1e-9)


def test_the_same_seed_gives_the_same_times():
    first, again, other = (list(islice(Arrivals(10, seed=seed).offsets(), 50)) for seed in (1, 1, 2))
    assert first == again != other


def test_the_parts_of_several_processes_are_all_of_them():
    whole = list(islice(Arrivals(10).offsets(), 9000))
    parts = [list(islice(Arrivals(10).offsets(), part, 9000, 3)) for part in range(3)]
    assert sorted(chain(*parts)) == whole


def test_recorded_times_end():
    assert list(Arrivals(1, times=(0.0, 0.5, 0.5)).offsets()) == [0.0, 0.5, 0.5]
