"""`ensemble tune`: what is tried, what is chosen, what is written, and the exit status."""

from __future__ import annotations

import json
import sys
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import yaml

from ensemble_capacity.plan import profile as profiles
from ensemble_capacity.plan.profile import Curve, Overhead, Point, Served
from ensemble_capacity.tune import __main__ as command
from ensemble_capacity.tune import candidate as grid
from ensemble_capacity.tune import measuring, search
from ensemble_capacity.tune.candidate import Candidate, candidates, variants
from ensemble_capacity.tune.form import AS_CONFIGURED, Form, exits_of
from ensemble_capacity.tune.kept import Seen
from ensemble_capacity.tune.measuring import confirmed, promised
from ensemble_capacity.tune.search import Goal, Trial, ranked
from packages.capacity.tests.plan.profiles import NONE, ROOT, application, profile
from scripts.configuration import check_arguments
from scripts.errors import ScriptError

# A batch of 16 takes 4 ms, one image 1 ms; a call to a separate node takes 2 ms of CPU time.
FLAT = Curve(1, 1, (Point(1, 1.0, 1.0), Point(16, 4.0, 4.0)), (1.0, 1.0))
CALLS = Served(Overhead(), Overhead(2.0, 0.0), 0.0, 0.0, 0.0, NONE, 300.0, 200.0, 400.0)
PROFILE = profile(
    nodes={**profile().nodes, "resnet": (FLAT,), "densenet": (FLAT,)},
    served={"inline": profile().served["inline"], "separate": CALLS},
)
CONFIG = {"applications": [application()]}
SMALL = {"ingresses": 1, "nodes": 1, "threads": 1, "batch_wait_ms": 0.0, "max_concurrent_batches": 1}


def trial(p99_ms):
    return Trial(CONFIG, {(): PROFILE}, Goal(p99_ms), 2, fixed=SMALL)


def test_the_grid_holds_what_is_held():
    every = candidates(2, {})
    assert len(every) == len(set(every))
    assert {each.ingresses for each in candidates(16, {})} == {1, 2, 4, 8}
    small = candidates(2, {**SMALL, "placement": "inline"})
    assert [each.max_batch_size for each in small] == list(grid.SIZES)
    assert {each.threads for each in small} == {1}


def test_no_candidate_is_another_by_another_name_or_has_more_threads_than_cores():
    # Of two cores a member's share is one.
    assert {each.threads for each in candidates(2, {})} == {None, 2}
    assert {each.threads for each in candidates(2, {"ingresses": 2, "placement": "inline"})} == {None}
    assert {each.threads for each in candidates(16, {"ingresses": 1, "placement": "inline"})} == {None, 1, 16}


def test_variants_are_every_form_with_every_number_of_streams():
    first = Candidate("inline", **SMALL, max_batch_size=8)
    other = Form("int8", (("resnet", 2),))
    found = list(variants(first, [AS_CONFIGURED, other], [1]))
    assert [(each.form, each.streams) for each in found] == [(AS_CONFIGURED, 1), (other, None), (other, 1)]
    assert len({str(each) for each in (first, *found)}) == 4
    [resnet, densenet] = found[-1].config(CONFIG)["applications"][0]["args"]["members"]
    assert (resnet["version"], resnet["streams"], densenet["streams"]) == (2, 1, 1)
    assert "version" not in densenet


def test_streams_are_tried_where_they_were_measured(monkeypatch):
    one, two = (Curve(2, streams, FLAT.points, FLAT.together) for streams in (1, 2))
    monkeypatch.setattr(search, "EXACT", (400, 3))
    both = profile(nodes={**PROFILE.nodes, "resnet": (FLAT, two, one), "densenet": (FLAT, two, one)})
    wide = Candidate("inline", **{**SMALL, "threads": 2}, max_batch_size=8)
    tried = Trial(CONFIG, {(): both}, Goal(100), 2).best([wide])
    assert {each.candidate.streams for each in tried} == {None, 1}
    fixed = Trial(CONFIG, {(): both}, Goal(100), 2, fixed={"streams": None}).best([wide])
    assert [each.candidate.streams for each in fixed] == [None]


def test_the_exits_of_a_cascade_are_shares_of_what_each_member_gets():
    assert exits_of([0.5, 0.25, 0.25]) == (0.5, 0.5)
    assert exits_of([1.0, 0.0]) == (1.0,)


def test_each_candidate_is_a_configuration_that_can_be_served():
    for candidate in candidates(2, {"batch_wait_ms": 2.0, "max_batch_size": 8}):
        [served] = candidate.config(CONFIG)["applications"]
        config = check_arguments(served)
        assert config.ingress.max_batch_size == 8
        assert config.ingress.max_concurrent_batches == candidate.max_concurrent_batches
        assert served["deployments"][0]["num_replicas"] == candidate.ingresses


def test_the_best_has_large_batches_in_one_process():
    best = trial(100).best(candidates(2, SMALL))[0]
    assert best.candidate.placement == "inline"
    assert best.candidate.max_batch_size > 4
    assert best.p99_ms <= 100
    # In batches of 4 it could answer 4 in 1.6 ms.
    assert best.rate > 2500


def test_a_tight_limit_holds_at_a_lower_rate():
    wide, tight = trial(100).best(candidates(2, SMALL))[0], trial(4).best(candidates(2, SMALL))[0]
    assert tight.p99_ms <= 4
    assert tight.rate < wide.rate


@pytest.fixture
def tried():
    return trial(100).highest(Candidate("inline", **SMALL, max_batch_size=8), 400, 3)


def holding(limit, asked):
    """A server whose p99 holds up to a rate."""

    def at(rate):
        asked.append(rate)
        return Seen(min(rate, 1.2 * limit), 80.0 if rate <= limit else 120.0)

    return at


@pytest.mark.parametrize(
    ("limit", "rates"),
    [(90, [100, 85, 92.5]), (150, [100, 117.6, 138.4]), (110, [100, 117.6, 108.8]), (50, [100, 51, 43.35])],
)
def test_the_highest_rate_that_holds_is_looked_for(tried, limit, rates):
    asked = []
    found = confirmed(tried, Goal(100), holding(limit, asked), 100.0)
    assert asked == pytest.approx(rates, rel=1e-3)
    assert found.rate == max(rate for rate in asked if rate <= limit)
    assert found.p99_ms == 80.0


def test_what_never_holds_is_the_nearest_and_no_more_than_enough_is_tried(tried):
    assert confirmed(tried, Goal(100), lambda rate: Seen(rate, 100 + rate), 100.0).rate == pytest.approx(72.25)
    assert confirmed(tried, Goal(100), lambda rate: Seen(0.0, None), 100.0).p99_ms == float("inf")
    asked = []
    assert confirmed(tried, Goal(100), holding(500, asked), 300.0, enough=200).rate == 200
    assert asked == [200]


def test_what_is_promised_held_in_a_fresh_server(tried):
    asked = []
    found = promised(replace(tried, rate=100.0), Goal(100), holding(96, asked))
    assert (found.rate, found.measured_rate) == (95, 95)
    never = promised(replace(tried, rate=100.0), Goal(100), holding(10, asked))
    assert never.rate == asked[-1]


def test_what_was_measured_corrects_what_is_measured_next(tried):
    near = replace(tried, candidate=replace(tried.candidate, placement="separate"), rate=0.7 * tried.rate)
    assert ranked([tried, near], Goal(100)) == [tried, near]
    assert ranked([tried, near], Goal(100), {"inline": 0.6}) == [near, tried]


UNKNOWN = ["speed=1", "placement=here", "placement=[a]", "max_batch_size=", "max_batch_size=true", "threads=many"]


@pytest.mark.parametrize("pair", [*UNKNOWN, "threads=[", "ingresses=1.5", "ingresses=0", "batch_wait_ms=.nan"])
def test_what_can_not_be_held_is_said(pair):
    with pytest.raises(ScriptError, match="--hold"):
        command.held([pair])


def test_what_is_held():
    found = command.held(["placement=inline", "batch_wait_ms=2.5", "threads=null"])
    assert found == {"placement": "inline", "batch_wait_ms": 2.5, "threads": None}


@pytest.fixture
def tune(tmp_path, monkeypatch, capsys):
    """Runs the command, with a profile that is there and with servers whose p99 is given."""
    file, out, served = tmp_path / "profile.json", tmp_path / "tuned.yaml", []
    profiles.write(PROFILE, file)

    @contextmanager
    def serving(config, cores):
        served.append(cores)
        check_arguments(config["applications"][0])
        yield "http://there"

    def run(p99_ms, *arguments):
        def loaded(url, images, load, seconds):
            run.loaded += 1
            # As numbers are that NumPy gives.
            rate = np.float64(load.rate)
            return SimpleNamespace(requests_per_s=rate, requests=10, failed=run.failed, percentiles_ms={"p99": p99_ms})

        for name, value in {"ROUGH": (100, 1), "EXACT": (200, 1), "FINALISTS": 3}.items():
            monkeypatch.setattr(search, name, value)
        monkeypatch.setattr(measuring, "serving", serving)
        monkeypatch.setattr(measuring, "loaded", loaded)
        given = [str(ROOT / "configs/colocated.yaml"), "--profile", str(file), "--out", str(out)]
        hold = ["--hold", "threads=1", "nodes=1", "max_concurrent_batches=1", "batch_wait_ms=0"]
        monkeypatch.setattr(sys, "argv", ["ensemble tune", *given, *hold, *arguments])
        run.served, run.loaded = served, 0
        command.main()
        return capsys.readouterr().out, out

    run.failed = 0
    return run


def test_it_writes_a_configuration_with_comments(tune):
    printed, out = tune(20.0, "--p99-ms", "30")
    text = out.read_text()
    assert "# Chosen by `ensemble tune` for a p99 of at most 30 ms." in text
    assert "requests/s at a p99 of 20.0 ms" in text
    assert "# max_batch_size: images in one batch" in text
    check_arguments(yaml.safe_load(text)["applications"][0])
    assert "more candidates" in printed or "goal" in printed
    assert f"ensemble serve {out}" in printed


def test_a_goal_that_is_not_reached_exits_by_3_with_the_nearest(tune, capsys):
    with pytest.raises(SystemExit) as raised:
        tune(45.0, "--p99-ms", "30")
    assert raised.value.code == 3
    assert "the nearest has a p99 of 45.0 ms" in capsys.readouterr().err


def test_a_p99_of_requests_that_failed_is_no_number(tune, tmp_path, capsys):
    tune.failed = 1
    all_held = ["threads=1", "nodes=1", "max_concurrent_batches=1", "batch_wait_ms=0", "streams=1"]
    all_held += ["placement=inline", "ingresses=1", "max_batch_size=8"]
    with pytest.raises(SystemExit):
        tune(45.0, "--p99-ms", "30", "--hold", *all_held, "--markdown", str(tmp_path / "tried.md"))
    told = capsys.readouterr()
    assert "the nearest has a p99 without end" in told.err
    assert "Measuring 1 of 1: " in told.out
    for text in (told.out, (tmp_path / "tuned.yaml").read_text(), (tmp_path / "tried.md").read_text()):
        assert "without end" in text
        assert " inf" not in text


def test_too_low_a_rate_is_not_the_goal(tune):
    with pytest.raises(SystemExit) as raised:
        tune(1.0, "--p99-ms", "30", "--rate", "1000000", "--no-measurement")
    assert raised.value.code == 3


def test_the_fewest_cores_are_served_on_so_many(tune):
    printed, out = tune(20.0, "--p99-ms", "30", "--minimize", "cores", "--rate", "100")
    assert "for 1 core:" in printed
    # Three candidates, and the best of them once more.
    assert tune.served == [1, 1, 1, 1]
    assert "# Measured with Poisson arrivals of 100/s" in out.read_text()
    assert "taskset -c 0-0 ensemble serve" in out.read_text()


def test_what_one_core_does_not_hold_is_tried_on_the_next(tune):
    with pytest.raises(SystemExit) as raised:
        tune(45.0, "--p99-ms", "30", "--minimize", "cores", "--rate", "100")
    assert raised.value.code == 3
    assert tune.served[0] == 1
    assert set(tune.served[3:]) == set(tune.served) - {1}


def test_the_picture_of_the_candidates(tune, tmp_path):
    pytest.importorskip("matplotlib")
    tune(20.0, "--p99-ms", "30", "--plot", str(tmp_path / "front.svg"))
    assert "<svg" in (tmp_path / "front.svg").read_text()


def test_what_was_measured_is_not_measured_again(tune, tmp_path):
    printed, _ = tune(20.0, "--p99-ms", "30", "--markdown", str(tmp_path / "tried.md"))
    count, seen = tune.loaded, json.loads((tmp_path / "tuned.measured.json").read_text())["seen"]
    assert len(seen) == count > 0
    assert "candidates on" in printed
    assert "minutes at most" in printed
    assert (tmp_path / "tried.md").read_text().count("inline") > 1
    again, _ = tune(20.0, "--p99-ms", "30")
    assert f"Going on with the {count} measurements" in again
    assert tune.loaded == 0
    tune(20.0, "--p99-ms", "30", "--again")
    assert tune.loaded == count
    other, _ = tune(20.0, "--p99-ms", "31")
    assert "another configuration, profile or goal" in other
    assert tune.loaded == count


@pytest.mark.parametrize(
    "arguments",
    [
        ["--p99-ms", "0"],
        ["--p99-ms", "nan"],
        ["--p99-ms", "5", "--out", "."],
        ["--p99-ms", "5", "--again", "--no-measurement"],
        ["--p99-ms", "5", "--max-accuracy-loss", "1", "--data", ".", "--exits", "0.5"],
        ["--p99-ms", "5", "--max-accuracy-loss", "1"],
        ["--p99-ms", "5", "--minimize", "cores"],
        ["--p99-ms", "5", "--cores", "1024"],
        [],
    ],
)
def test_bad_input_is_a_usage_error(tune, arguments):
    with pytest.raises(SystemExit) as raised:
        tune(1.0, *arguments)
    assert raised.value.code == 2
