from itertools import islice

import numpy as np
import pytest

from ensemble_capacity.load.load import Arrivals


def gaps(arrivals, count=20_000):
    return np.diff([0.0, *islice(arrivals.offsets(), count)])


def test_gaps_have_the_rate_and_the_spread_of_a_poisson_process():
    found = gaps(Arrivals(250))
    assert found.min() >= 0
    assert found.mean() == pytest.approx(1 / 250, rel=0.05)
    assert found.std() / found.mean() == pytest.approx(1, rel=0.05)


def test_the_same_seed_gives_the_same_times():
    first, again, other = (list(islice(Arrivals(10, seed=seed).offsets(), 50)) for seed in (1, 1, 2))
    assert first == again != other


def test_recorded_times_end():
    assert list(Arrivals(1, times=(0.0, 0.5, 0.5)).offsets()) == [0.0, 0.5, 0.5]
