import numpy as np
import pytest

from scripts.interval import Interval


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0.0] * 300, (0, -1, 1)),
        ([1.0] * 300, (100, 99, 100)),
        ([0.0], (0, -100, 100)),
        ([-1.0], (-100, -100, 100)),
        ([1.0, -1.0], (0, -100, 100)),
    ],
)
def test_few_images_have_a_wide_interval_within_what_a_difference_can_be(values, expected):
    found = Interval.paired(np.array(values))
    assert (found.mean, found.low, found.high) == pytest.approx(expected)
