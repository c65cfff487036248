"""`ensemble tune`: what is tried, what is measured and chosen, what is written, and the exit status."""

from __future__ import annotations

import json
import sys
from contextlib import contextmanager
from types import SimpleNamespace

import click
import numpy as np
import pytest
import yaml

from ensemble_capacity.plan import profile as profiles
from ensemble_capacity.plan.profile import Curve, Overhead, Point, Served
from ensemble_capacity.tune import __main__ as command
from ensemble_capacity.tune import candidates as grid
from ensemble_capacity.tune import measuring
from ensemble_capacity.tune.candidates import Goal, Predictions, candidates, diverse, ranked
from ensemble_capacity.tune.journal import Journal
from ensemble_capacity.tune.measuring import Measuring
from packages.capacity.tests.plan.profiles import NONE, ROOT, application, profile
from scripts.configuration import check_arguments

# A batch of 16 takes 4 ms, one image 1 ms; a call to a separate node takes 2 ms of CPU time.
FLAT = Curve(1, 1, (Point(1, 1.0, 1.0), Point(16, 4.0, 4.0)), (1.0, 1.0))
CALLS = Served(Overhead(), Overhead(2.0, 0.0), 0.0, 0.0, 0.0, NONE, 300.0, 200.0, 400.0)
PROFILE = profile(
    nodes={**profile().nodes, "resnet": (FLAT,), "densenet": (FLAT,)},
    served={"inline": profile().served["inline"], "separate": CALLS},
)
CONFIG = {"applications": [application()]}
SMALL = {"ingresses": 1, "nodes": 1, "threads": 1, "batch_wait_ms": 0.0, "max_concurrent_batches": 1}


def predictions(p99_ms, **more):
    return Predictions(CONFIG, PROFILE, Goal(p99_ms), 2, **{"fixed": SMALL, **more})


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


def test_each_member_of_a_cascade_has_all_cores_without_a_setting():
    cascade = application("configs/cascade.yaml")
    names = cascade["args"]["ensemble"]["cascade"]["order"]
    two = Curve(2, 2, (Point(1, 1.0, 0.5), Point(16, 16.0, 8.0)), (1.0, 1.0))
    one = Curve(1, 1, (Point(1, 1.0, 1.0), Point(16, 16.0, 16.0)), (1.0, 1.0))
    known = profile(nodes={**profile().nodes, **{name: (one, two) for name in names}})
    exits = (0.5,) * (len(names) - 1)
    fixed = {**SMALL, "placement": "inline"}
    del fixed["threads"]
    config = {"applications": [cascade]}
    tried = Predictions(config, known, Goal(100), 2, exits, fixed=fixed).ranked()
    assert tried[0].candidate.threads is None
    # Two threads for each would be the same candidate by another name.
    assert {each.candidate.threads for each in tried} == {None, 1}


def predictions_of(known, fixed):
    return Predictions(CONFIG, known, Goal(100), 2, fixed=fixed).ranked()


def test_every_number_of_streams_is_predicted():
    one, two = (Curve(2, streams, FLAT.points, FLAT.together) for streams in (1, 2))
    both = profile(nodes={**PROFILE.nodes, "resnet": (FLAT, two, one), "densenet": (FLAT, two, one)})
    fixed = {**SMALL, "threads": 2, "placement": "inline", "max_batch_size": 8}
    found = {each.candidate.streams: each.candidate for each in predictions_of(both, fixed)}
    assert set(found) == {None, 1}
    assert len({str(each) for each in found.values()}) == 2
    members = found[1].config(CONFIG)["applications"][0]["args"]["members"]
    assert [member["streams"] for member in members] == [1, 1]
    held = predictions_of(both, {**fixed, "streams": None})
    assert [each.candidate.streams for each in held] == [None]


def test_each_candidate_is_a_configuration_that_can_be_served():
    for candidate in candidates(2, {"batch_wait_ms": 2.0, "max_batch_size": 8}):
        [served] = candidate.config(CONFIG)["applications"]
        config = check_arguments(served)
        assert config.ingress.max_batch_size == 8
        assert config.ingress.max_concurrent_batches == candidate.max_concurrent_batches
        assert served["deployments"][0]["num_replicas"] == candidate.ingresses


def test_the_best_has_large_batches_in_one_process():
    best = predictions(100).ranked()[0]
    assert best.candidate.placement == "inline"
    assert best.candidate.max_batch_size > 4
    assert best.p99_ms <= 100
    # In batches of 4 it could answer 4 in 1.6 ms.
    assert best.rate > 2500


def test_a_tight_limit_holds_at_a_lower_rate():
    wide, tight = predictions(100).ranked()[0], predictions(4).ranked()[0]
    assert tight.p99_ms <= 4
    assert tight.rate < wide.rate
    # A prediction that nothing holds is no reason to begin the measurements at nothing.
    never = predictions(0.1).ranked()[0]
    assert not never.meets(Goal(0.1))
    assert 0.2 * wide.rate < never.rate < wide.rate


def test_the_first_candidates_differ_in_what_predictions_are_wrong_about():
    fixed = {name: SMALL[name] for name in ("threads", "nodes", "max_concurrent_batches")}
    tried = predictions(100, fixed=fixed).ranked()
    chosen = diverse(tried, 4)
    assert len({each.candidate.shape for each in chosen}) == 4
    assert chosen[0] == tried[0]
    assert sorted(map(str, diverse(tried, 1000))) == sorted(map(str, tried))


def test_what_was_measured_corrects_what_is_measured_next():
    first, near = predictions(100).ranked()[0], predictions(100, fixed={**SMALL, "placement": "separate"}).ranked()[0]
    assert ranked([first, near], Goal(100)) == [first, near]
    assert ranked([first, near], Goal(100), {"inline": 0.01}) == [near, first]


class Machine:
    """Servers that hold a p99 of 80 ms up to a rate, by candidate; above it they answer little, and late."""

    def __init__(self, capacity, monkeypatch, answered=0.1):
        self.capacity, self.answered, self.sent, self.started = capacity, answered, [], []
        monkeypatch.setattr(measuring, "serving", self.serving)
        monkeypatch.setattr(measuring, "loaded", self.loaded)

    @contextmanager
    def serving(self, config, cores):
        [served] = config["applications"]
        check_arguments(served)
        self.started.append(served["args"]["ingress"]["max_batch_size"])
        yield "http://there"

    def loaded(self, url, images, load, seconds):
        self.sent.append((load.rate, seconds, load.seed))
        most = self.capacity(self.started[-1], load.seed)
        holds = load.rate <= most
        # As numbers are that NumPy gives.
        rate = np.float64(load.rate if holds else self.answered * most)
        latencies = {"p99": 80.0 if holds else 1000 + load.rate}
        return SimpleNamespace(requests_per_s=rate, requests=10, failed=0, percentiles_ms=latencies)


def measured(tmp_path, goal=Goal(100), **more):
    journal = Journal()
    fixed = {**SMALL, "placement": "inline"}
    tried = Predictions(CONFIG, PROFILE, goal, 2, fixed=fixed).ranked()
    return Measuring(CONFIG, goal, [b""], 2, journal, tmp_path / "kept.json", **more).best(tried), tried


@pytest.mark.parametrize("factor", [0.02, 0.3, 0.98, 1.0, 4.0])
@pytest.mark.parametrize("answered", [0.05, 1.0])
def test_the_highest_rate_is_found_however_wrong_the_prediction_was(tmp_path, monkeypatch, factor, answered):
    predicted = predictions(100, fixed={**SMALL, "placement": "inline"}).ranked()[0].rate
    capacity = factor * predicted
    machine = Machine(lambda size, seed: capacity, monkeypatch, answered)
    [best, *_], _ = measured(tmp_path)
    assert 0.95 * capacity <= best.rate <= capacity
    assert best.p99_ms == 80.0
    # A minute in a fresh server, under other arrivals.
    assert machine.sent[-1] == (pytest.approx(best.rate, rel=1e-3), 60.0, 1)
    assert {seconds for _, seconds, _ in machine.sent} == {5.0, 10.0, 60.0}


def test_the_best_is_chosen_by_measurement_and_not_by_prediction(tmp_path, monkeypatch):
    # The smallest batches are predicted to be the slowest.
    machine = Machine(lambda size, seed: {4: 900.0}.get(size, 300.0), monkeypatch)
    [best, *others], tried = measured(tmp_path)
    assert tried[-1].candidate.max_batch_size == best.candidate.max_batch_size == 4
    assert 855 <= best.rate <= 900
    # Four candidates roughly, the best three of them closely, and the best one once more.
    assert len(machine.started) == 4 + 3 + 1
    assert machine.started[-1] == 4
    assert all(each.rate <= 300 for each in others)


def test_a_rate_that_does_not_hold_for_a_minute_is_lowered(tmp_path, monkeypatch):
    Machine(lambda size, seed: 250.0 if seed else 300.0, monkeypatch)
    [best, *_], _ = measured(tmp_path)
    assert 0.94 * 250 <= best.rate <= 250


def test_a_goal_that_nothing_reaches_has_a_nearest(tmp_path, monkeypatch):
    machine = Machine(lambda size, seed: 0.0, monkeypatch)
    [best, *_], _ = measured(tmp_path)
    assert not best.meets(Goal(100))
    assert best.p99_ms == min(1000 + rate for rate, _, _ in machine.sent)


def test_no_more_than_enough_is_tried(tmp_path, monkeypatch):
    machine = Machine(lambda size, seed: 500.0, monkeypatch)
    [best, *_], _ = measured(tmp_path, enough=200.0)
    assert best.rate == 200
    assert max(rate for rate, _, _ in machine.sent) == 200


UNKNOWN = ["speed=1", "placement=here", "placement=[a]", "max_batch_size=", "max_batch_size=true", "threads=many"]


@pytest.mark.parametrize("pair", [*UNKNOWN, "threads=[", "ingresses=1.5", "ingresses=0", "batch_wait_ms=.nan"])
def test_what_can_not_be_held_is_said(pair):
    with pytest.raises(click.BadParameter):
        command.HeldType().convert(pair, None, None)


def test_what_is_held():
    given = ["placement=inline", "batch_wait_ms=2.5", "threads=null"]
    found = dict(command.HeldType().convert(pair, None, None) for pair in given)
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
            rate, holds = np.float64(load.rate), load.rate <= 300
            latencies = {"p99": p99_ms if holds else 1e6}
            return SimpleNamespace(requests_per_s=rate, requests=10, failed=run.failed, percentiles_ms=latencies)

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


def test_a_repository_beside_the_configuration_is_named_as_it_was(tmp_path):
    there, elsewhere = tmp_path / "models", tmp_path / "other" / "tuned.yaml"
    for file, repository in ((tmp_path / "tuned.yaml", "models"), (elsewhere, str(there))):
        config = {"applications": [application()]}
        config["applications"][0]["args"]["model_repository"] = str(there)
        [served] = command.beside(config, file)["applications"]
        assert served["args"]["model_repository"] == repository


def test_a_goal_that_is_not_reached_exits_by_3_with_the_nearest(tune, capsys):
    with pytest.raises(SystemExit) as raised:
        tune(45.0, "--p99-ms", "30")
    assert raised.value.code == 3
    assert "at a p99 of 45.0 ms" in capsys.readouterr().err


def test_a_p99_of_requests_that_failed_is_no_number(tune, tmp_path, capsys):
    tune.failed = 1
    all_held = ["threads=1", "nodes=1", "max_concurrent_batches=1", "batch_wait_ms=0", "streams=1"]
    all_held += ["placement=inline", "ingresses=1", "max_batch_size=8"]
    with pytest.raises(SystemExit):
        tune(45.0, "--p99-ms", "30", "--hold", *all_held, "--markdown", str(tmp_path / "tried.md"))
    told = capsys.readouterr()
    assert "at a p99 without end" in told.err
    assert "Round 1, 1 of 1: " in told.out
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
    # The first candidate is enough, and is served once more.
    assert tune.served == [1, 1]
    assert "# Measured with Poisson arrivals of 100/s" in out.read_text()
    assert "taskset -c 0-0 ensemble serve" in out.read_text()


def test_what_one_core_does_not_hold_is_tried_on_the_next(tune):
    with pytest.raises(SystemExit) as raised:
        tune(45.0, "--p99-ms", "30", "--minimize", "cores", "--rate", "100")
    assert raised.value.code == 3
    assert set(tune.served) == {1, 2}
    assert tune.served == sorted(tune.served)


def test_what_was_measured_is_not_measured_again(tune, tmp_path):
    printed, _ = tune(20.0, "--p99-ms", "30", "--markdown", str(tmp_path / "tried.md"))
    count, seen = tune.loaded, json.loads((tmp_path / "tuned.measured.json").read_text())["seen"]
    assert len(seen) == count > 0
    assert "candidates are predicted on" in printed
    assert "minutes" in printed
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
        ["--p99-ms", "5", "--minimize", "cores"],
        ["--p99-ms", "5", "--cores", "1024"],
        [],
    ],
)
def test_bad_input_is_a_usage_error(tune, arguments):
    with pytest.raises(SystemExit) as raised:
        tune(1.0, *arguments)
    assert raised.value.code == 2
