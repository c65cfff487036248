"""What is said of a way's throughput follows from its rates."""

import pytest

from lab import reported
from lab.experiments.batches import ALONE, BATCHES, SHARED, SIZES, level, with_peaks


def rows(**rates):
    return with_peaks(
        [
            {"way": way, "images": size, "images_per_s": rate, "p50_ms": 1.0, "answered": 900}
            for way, each in rates.items()
            for size, rate in zip(SIZES, each, strict=True)
        ]
    )


GROWS, LEVEL = (100, 200, 300, 400, 500, 600), (100, 200, 500, 510, 505, 500)


@pytest.mark.parametrize(
    ("shared", "verdict"),
    [
        (GROWS, "no plateau up to 64 images: 400 images/s with 16, 500 images/s with 32, 600 images/s with 64"),
        (LEVEL, "a plateau from 8 to 64 images: 510 images/s with 16, 505 images/s with 32, 500 images/s with 64"),
    ],
)
def test_a_plateau_is_told_where_the_rates_have_one(shared, verdict):
    found = BATCHES.compare(rows(HTTP=LEVEL, gRPC=GROWS, **{SHARED: shared, ALONE: LEVEL}))
    assert found["shared memory"] == verdict
    assert found["images per request at the bottleneck over HTTP"] == "8 images reach 95 % of the best"
    assert set(found) == {each.subject for each in reported.of("batches")}


def test_the_fewest_images_that_nearly_reach_the_best_count():
    assert [level(rows(HTTP=rates), "HTTP") for rates in (GROWS, LEVEL)] == [64, 8]


def test_locality_is_of_one_client_on_both_sides():
    found = BATCHES.compare(rows(HTTP=LEVEL, gRPC=GROWS, **{SHARED: LEVEL, ALONE: LEVEL}))
    assert "one image at a time" in found["a call in the process of the model"]
    assert "one client" in found["the call from another machine"]
