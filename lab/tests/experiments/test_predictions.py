import re
from random import Random

import numpy as np
import pytest

from ensemble_capacity.plan.model import Loop, Profile
from lab.experiments import predictions
from lab.experiments.predictions import CONFIGURATIONS, LOADS, MODELS, PLACEMENTS, holds, loads, parts, tabled
from lab.rows import measured
from scripts.shipped import CHECKOUT


def row(p99_ms, **changes):
    bounds = {"requests_per_s_bounds": [48.0, 50.0], "p50_ms_bounds": [9.0, 11.0], "p99_ms_bounds": [20.0, 45.0]}
    return {"models": "embedded", "requests_per_s": 49.0, "p50_ms": 10.0, "p99_ms": p99_ms, **bounds, **changes}


def test_every_model_and_placement_is_drawn_and_the_same_ones_each_time():
    first, second = parts(1), parts(1)
    assert [part.key for part in first] == [part.key for part in second]
    assert len(first) == CONFIGURATIONS
    assert {(part.key["models"], part.key["placement"]) for part in first} == {
        (models, placement) for models in MODELS for placement in PLACEMENTS
    }


def test_loads_are_within_the_profile_and_were_not_measured():
    loops, checks = (
        tuple(Loop(clients, 100, 10.0 * clients, 9.0, 9.0, 1.0) for clients in some) for some in ((1, 2, 4), (3, 12))
    )
    found = loads(Profile(2, loops, checks, 1.0, 1.0), Random(0))
    assert len({*found}) == LOADS
    assert not {*found} & {1, 2, 3, 4, 12}
    assert max(found) < 12


def test_a_figure_outside_its_interval_is_counted():
    rows = [row(30.0), row(46.0), {"models": "embedded", "error": "did not start"}]
    assert [holds(each, "p99_ms") for each in rows[:2]] == [True, False]
    table = predictions.PREDICTIONS.table(rows)
    assert [line for line in table.lines if line[0] == "embedded"][:3] == [
        ["embedded", "requests per second", "2", "2", "0"],
        ["embedded", "p50", "2", "2", "0"],
        ["embedded", "p99", "2", "1", "2"],
    ]
    assert table.notes == ["embedded: not measured: did not start"]
    assert sum(each["wide"] for each in measured(tabled(rows))) == 2


@pytest.mark.parametrize("models", MODELS)
def test_the_picture_has_each_figure_with_an_interval(models):
    groups = dict(predictions.picture([row(30.0, models=models), row(46.0, models=models)]))
    assert [(bar.label, bar.text) for bar in groups[models]] == [
        ("requests per second", "2 of 2"),
        ("p50", "2 of 2"),
        ("p99", "1 of 2"),
    ]


def p99_of(load, seconds, draw, took_s=0.035):
    """The p99 of Poisson arrivals at one simulated server, milliseconds."""
    arrivals = np.sort(draw.uniform(0, seconds, draw.poisson(load / took_s * seconds)))
    end, latencies = 0.0, []
    for arrival, took in zip(arrivals, took_s * draw.normal(1, 0.15, len(arrivals)).clip(0.5), strict=True):
        end = max(end, arrival) + took
        latencies.append(1000 * (end - arrival))
    return np.percentile(latencies, 99)


@pytest.mark.parametrize(("load", "p99"), [(0.3, 2.0), (0.8, 4.3)])
def test_two_loads_alike_differ_by_chance_as_the_page_says(load, p99):
    draw = np.random.default_rng(0)
    ratios = np.array([p99_of(load, 40, draw) / p99_of(load, 40, draw) for _ in range(200)])
    low, high = np.quantile(ratios, [0.025, 0.975])
    assert high / low == pytest.approx(p99, rel=0.25)
    page = " ".join((CHECKOUT / "docs/experiments/overload.md").read_text(encoding="utf-8").split())
    assert re.search(rf"by {p99} times at (?:a load of )?{load}", page)
