"""A profile is kept in a file, and its durations are read between what was measured."""

from __future__ import annotations

import pytest

from ensemble_capacity.load.measure import Row
from ensemble_capacity.load.server import Figures
from ensemble_capacity.plan import profile as profiles
from ensemble_capacity.plan.calibration import Watched, overhead
from ensemble_capacity.plan.profile import Curve, Point
from packages.capacity.tests.plan.profiles import curve, profile
from scripts.errors import ScriptError

MEASURED = Curve(1, 1, (Point(1, 2.0, 1.0), Point(4, 5.0, 4.0), Point(16, 20.0, 16.0)), (1.0, 1.3, 1.1))


def test_between_and_beyond_what_was_measured():
    assert MEASURED.at(1) == pytest.approx((0.002, 0.001, 1.0))
    assert MEASURED.at(2) == pytest.approx((0.003, 0.002, 1.1))
    assert MEASURED.at(16) == pytest.approx((0.020, 0.016, 1.1))
    assert MEASURED.at(32) == pytest.approx((0.040, 0.032, 1.1))
    # An image now and then, as behind the exit of a cascade.
    assert MEASURED.at(0.5) == pytest.approx((0.001, 0.0005, 1.0))


def test_a_profile_is_read_as_it_was_written(tmp_path):
    file = tmp_path / "new" / "profile.json"
    profiles.write(profile(), file)
    assert profiles.read(file) == profile()
    file.write_text("{}")
    with pytest.raises(ScriptError, match="--measure"):
        profiles.read(file)


def test_the_curve_of_the_most_threads_that_are_not_more():
    nodes = {"resnet": (curve(1), curve(2))}
    found = profile(nodes=nodes)
    assert [found.curve("resnet", threads).threads for threads in (1, 2, 8)] == [1, 2, 2]


def test_an_overhead_is_what_two_loads_agree_on():
    # Of each image 0.5 ms, and of each batch 2 ms.
    found = overhead((1, 2.5), (16, 0.5 + 2 / 16))
    assert (found.batch_ms, found.image_ms) == pytest.approx((2.0, 0.5))
    # Where batches did not differ, all of it is the images'.
    assert overhead((1, 2.0), (1.2, 1.5)).batch_ms == 0
    assert overhead((1, 1.0), (16, 2.0)).batch_ms == 0


def test_what_a_server_used_is_divided_by_its_processes():
    cpu_s = {
        "ray::ServeReplica:ensemble:Ingress": 4.0,
        "ray::SERVE_REPLICA::ensemble#resnet#x1:ServeRepl": 2.0,
        "haproxy": 1.0,
        "raylet": 0.5,
    }
    figures = Figures(seconds=10.0, cpu_s=cpu_s, memory_mb=cpu_s, batches={1: 1, 3: 1})
    found = Watched.of(
        Row(
            mode="concurrency", value=4, batch=1, seconds=10.0, stable=None, requests=1000, failed=0, outcomes={},
            first_error="", requests_per_s=100.0, images_per_s=100.0, mean_ms=1.0, percentiles_ms={"p50": 9.0},
            max_ms=1.0, slo_percentile_ms=None, late_p99_ms=0.0, client_cpu_ms=0.2, client="ok", top1=None,
            degraded=0.0, shed=0.0, server=figures,
        )
    )  # fmt: skip
    assert found.cpu_ms == pytest.approx({"ingress": 4.0, "node": 2.0, "proxy": 1.0, "rest": 0.5})
    assert (found.images, found.background) == (2.0, 0.05)
    assert found.memory_mb == {"ingress": 4.0, "node": 2.0, "proxy": 1.0, "rest": 0.5}
