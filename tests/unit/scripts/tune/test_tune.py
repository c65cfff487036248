"""`ensemble tune`: what is tried, what is chosen, what is written, and the exit status."""

from __future__ import annotations

import sys
from contextlib import contextmanager

import pytest
import yaml

from scripts.configuration import check_arguments
from scripts.errors import ScriptError
from scripts.plan import profile as profiles
from scripts.plan.profile import Curve, Overhead, Point, Served
from scripts.tune import __main__ as command
from scripts.tune import search
from scripts.tune.search import Candidate, Goal, Trial, candidates, confirmed
from tests.unit.scripts.plan.profiles import ROOT, application, profile

# A batch of 16 takes 4 ms, one image 1 ms; a call to a separate node takes 2 ms of CPU time.
FLAT = Curve(1, 1, (Point(1, 1.0, 1.0), Point(16, 4.0, 4.0)), (1.0, 1.0))
CALLS = Served(Overhead(), Overhead(2.0, 0.0), 0.0, 0.0, 0.0, 0.0, 300.0, 200.0, 400.0)
PROFILE = profile(
    nodes={**profile().nodes, "resnet": (FLAT,), "densenet": (FLAT,)},
    served={"inline": profile().served["inline"], "separate": CALLS},
)
CONFIG = {"applications": [application()]}
SMALL = {"ingresses": 1, "nodes": 1, "threads": 1, "batch_wait_ms": 0.0, "max_concurrent_batches": 1}


def trial(p99_ms):
    return Trial(CONFIG, PROFILE, Goal(p99_ms), 2)


def test_the_grid_holds_what_is_held():
    every = list(candidates(2, {}))
    assert len(every) == len(set(every))
    assert {each.ingresses for each in candidates(16, {})} == {1, 2, 4, 8}
    small = list(candidates(2, {**SMALL, "placement": "inline"}))
    assert [each.max_batch_size for each in small] == list(search.SIZES)
    assert {each.threads for each in small} == {1}


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


def test_what_does_not_hold_is_measured_at_lower_rates():
    tried = trial(100).highest(Candidate("inline", **SMALL, max_batch_size=8), 400, 3)
    asked = []

    def measure(rate):
        asked.append(rate)
        return rate, 120.0 if len(asked) == 1 else 80.0

    found = confirmed(tried, Goal(100), measure)
    assert asked == pytest.approx([tried.rate, 0.85 * tried.rate])
    assert (found.rate, found.p99_ms) == (asked[1], 80.0)
    never = confirmed(tried, Goal(100), lambda rate: (rate, rate))
    assert never.rate == pytest.approx(0.85**2 * tried.rate)


@pytest.mark.parametrize("pair", ["speed=1", "placement=here", "max_batch_size=", "threads=many"])
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
        class Row:
            requests_per_s, failed, percentiles_ms = 500.0, 0, {"p99": p99_ms}

        monkeypatch.setattr(command, "serving", serving)
        monkeypatch.setattr(command, "loaded", lambda *_: Row)
        given = [str(ROOT / "configs/colocated.yaml"), "--profile", str(file), "--out", str(out)]
        hold = ["--hold", "threads=1", "nodes=1", "max_concurrent_batches=1", "batch_wait_ms=0"]
        monkeypatch.setattr(sys, "argv", ["ensemble tune", *given, *hold, *arguments])
        run.served = served
        command.main()
        return capsys.readouterr().out, out

    return run


def test_it_writes_a_configuration_with_comments(tune):
    printed, out = tune(20.0, "--p99-ms", "30")
    text = out.read_text()
    assert "# Chosen by `ensemble tune` for a p99 of at most 30 ms." in text
    assert "500 requests/s at a p99 of 20.0 ms" in text
    assert "# max_batch_size: images in one batch" in text
    check_arguments(yaml.safe_load(text)["applications"][0])
    assert "more candidates" in printed or "goal" in printed
    assert f"ensemble serve {out}" in printed


def test_a_goal_that_is_not_reached_exits_by_3_with_the_nearest(tune, capsys):
    with pytest.raises(SystemExit) as raised:
        tune(45.0, "--p99-ms", "30")
    assert raised.value.code == 3
    assert "the nearest has a p99 of 45.0 ms" in capsys.readouterr().err


def test_too_low_a_rate_is_not_the_goal(tune):
    with pytest.raises(SystemExit) as raised:
        tune(1.0, "--p99-ms", "30", "--rate", "1000000", "--no-measurement")
    assert raised.value.code == 3


def test_the_fewest_cores_are_served_on_so_many(tune):
    printed, out = tune(20.0, "--p99-ms", "30", "--minimize", "cores", "--rate", "100")
    assert "for 1 core:" in printed
    assert tune.served == [1, 1, 1]
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


@pytest.mark.parametrize(
    "arguments", [["--p99-ms", "0"], ["--p99-ms", "5", "--minimize", "cores"], ["--p99-ms", "5", "--cores", "1024"], []]
)
def test_bad_input_is_a_usage_error(tune, arguments):
    with pytest.raises(SystemExit) as raised:
        tune(1.0, *arguments)
    assert raised.value.code == 2
