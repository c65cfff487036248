"""Cascades on paper, and the command that chooses them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

from deployments.combiner import Combiner, CombinerSettings
from deployments.contract.batch import Batch
from deployments.contract.item import Item
from deployments.contract.options import Options
from deployments.pipeline.member_client import Member, QuorumSettings
from deployments.repository.repository import sha256
from ensemble_features.cascade.flow import Cascade
from ensemble_features.cascade.ladder import Ladder, Tolerance
from ensemble_features.cascade.settings import CascadeSettings, RungSettings
from ensemble_models.cascades import Choice, choose, ladder, orders
from ensemble_models.ensembles import Members
from ensemble_models.statistics import Interval
from ensemble_models.tune_cascade import main, report, worthwhile
from packages.models.tests.test_subsets import drawn
from packages.models.tests.tiny import Draw, add, constant
from scripts.errors import ScriptError


def scored(count: int = 400, classes: int = 3) -> Members:
    """Three members that guess, of which the first two know something, and the last one most."""
    random = np.random.default_rng(0)
    labels = random.integers(0, classes, count)
    known = np.eye(classes)[labels]
    scores = {}
    for name, skill in {"small": 1.0, "middle": 2.0, "large": 4.0}.items():
        logits = random.standard_normal((count, classes)) + skill * known
        scores[name] = (np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)).astype(np.float32)
    costs = {"small": 1.0, "middle": 2.0, "large": 6.0}
    return Members(scores, labels.astype(np.int64), dict.fromkeys(scores, 1.0), costs)


class Recalls:
    """A member that gives the rows that were scored, by the image's number."""

    def __init__(self, rows: np.ndarray) -> None:
        self.rows = rows

    async def __call__(self, batch: Batch) -> Batch:
        return Batch(self.rows[batch.payload], batch.items)


@pytest.mark.parametrize("gate", [0.0, 1.0])
async def test_a_cascade_on_paper_answers_as_the_one_that_serves(gate: float) -> None:
    members = scored()
    members.weights["small"] = gate  # type: ignore[index]
    order, exit_at = ("small", "large", "middle"), (0.7, 0.8)
    walk = members.walk(order, exit_at)
    asking = CascadeSettings(order=order, exit_at=exit_at)
    combiner = Combiner(CombinerSettings(), members.weights)
    flow = Cascade(
        {name: Member(Recalls(rows), "pixels") for name, rows in members.scores.items()},  # type: ignore[arg-type]
        combiner,
        QuorumSettings(),
        asking,
    )
    count = len(members.labels)
    answer = await combiner(await flow(Batch({"pixels": np.arange(count)}, (Item(),) * count)))  # type: ignore[arg-type]
    np.testing.assert_array_equal(answer.payload.argmax(axis=1), walk.answers)
    asked = [item.extras["asked"] for item in answer.items]
    assert walk.stops == tuple(sum(each[-1] == name for each in asked) / count for name in order)
    assert walk.cost == pytest.approx(np.mean([sum(members.costs[name] for name in each) for each in asked]))


def test_the_cheapest_that_loses_little_is_chosen_and_more_loss_allows_a_cheaper_one() -> None:
    members = scored()
    strict, loose = choose(members, 0.5), choose(members, 5.0)
    full = (members.full() == members.labels).mean()
    walks = [members.walk(choice.order, choice.exit_at) for choice in (strict, loose)]
    assert walks[1].cost < walks[0].cost < sum(members.costs.values())
    assert 100 * (full - (walks[0].answers == members.labels).mean()) <= 0.5
    assert 100 * (full - (walks[1].answers == members.labels).mean()) <= 5.0


def test_a_ladder_costs_less_with_each_rung_and_other_images_bound_its_loss() -> None:
    members = scored(1_000)
    choosing = np.arange(1_000) % 2 == 0
    order = choose(members.part(choosing), 0.5).order
    rungs = ladder(members, choosing, order)
    costs, losses = [rung["cost"] for rung in rungs], [rung["loss"] for rung in rungs]
    assert len(rungs) >= 3
    assert costs == sorted(costs, reverse=True)
    assert (losses, costs[0] < 1) == (sorted(losses), True)
    judged = members.part(~choosing)
    right = judged.full() == judged.labels
    for rung in rungs:
        walk = judged.walk(order, rung["exit_at"])
        lost = 100 * float((right & (walk.answers != judged.labels)).mean())
        differs = float((walk.answers != judged.full()).mean())
        assert lost < rung["loss"]
        assert differs < rung["differs"] < differs + 0.05
        assert rung["cost"] == pytest.approx(walk.cost / sum(members.costs.values()), abs=1e-4)
    CascadeSettings(order=order, exit_at=rungs[0]["exit_at"], ladder=rungs)


def test_what_callers_lose_is_within_the_bounds_of_their_rungs_and_costs_less_the_more_they_tolerate() -> None:
    # So many are served that their loss is hardly a matter of chance.
    members, order = scored(30_000).only(("small", "large")), ("small", "large")
    tolerances = (0.5, 1.0, 2.0)
    within, costs = 0, np.zeros(len(tolerances))
    for seed in range(20):
        random = np.random.default_rng(seed)
        tuned, choosing = random.permutation(30_000) < 4_000, random.permutation(4_000) < 2_000
        rungs = ladder(members.part(tuned), choosing, order)
        served, traffic = Ladder([RungSettings(**rung) for rung in rungs], 1), members.part(~tuned)
        full, kept = (traffic.full() == traffic.labels).mean(), True
        for place, tolerance in enumerate(tolerances):
            rung = served.rungs[served.accept(Tolerance(tolerance=tolerance), Options()).rung]
            walk = traffic.walk(order, rung.exit_at)
            assert rung.bounds.loss <= tolerance
            kept &= 100 * (full - (walk.answers == traffic.labels).mean()) <= rung.bounds.loss
            costs[place] += walk.cost / 20
        within += kept
    assert within >= 19
    assert costs[0] > costs[1] > costs[2]


def test_of_cascades_that_cost_nearly_the_same_the_one_that_answers_like_all_together_is_chosen() -> None:
    # Of a hundred images both know, one is told apart by `a` alone; `b`, which is a little cheaper, is wrong of it.
    labels = np.zeros(100, np.int64)
    sure = np.tile(np.array([[0.9, 0.1]], np.float32), (100, 1))
    wrong = sure.copy()
    wrong[0] = [0.35, 0.65]
    members = Members({"a": sure, "b": wrong}, labels, {"a": 1.0, "b": 1.0}, {"a": 1.0, "b": 0.99})
    assert choose(members, 10.0).order == ("a", "b")
    dear = Members({"a": sure, "b": wrong}, labels, {"a": 1.0, "b": 1.0}, {"a": 1.0, "b": 0.5})
    assert choose(dear, 10.0).order == ("b", "a")


def test_gates_come_first() -> None:
    members = scored()
    members.weights["middle"] = 0.0  # type: ignore[index]
    assert {order[0] for order in orders(members)} == {"middle"}


def test_members_that_are_calibrated_leave_something_to_choose_between_0_95_and_1() -> None:
    # The first is right wherever it is surer than 0.98, and the second everywhere.
    sure = np.linspace(0.96, 0.995, 400, dtype=np.float32)
    first = np.where(sure[:, None] > 0.98, np.stack([sure, 1 - sure], 1), np.stack([1 - sure, sure], 1))
    second = np.tile(np.array([0.999, 0.001], np.float32), (400, 1))
    members = Members(
        {"first": first, "second": second},
        np.zeros(400, np.int64),
        {"first": 0.0, "second": 1.0},
        {"first": 1.0, "second": 9.0},
    )
    choice = choose(members, 0.1)
    assert 0.98 < choice.exit_at[0] < 0.985
    assert members.walk(choice.order, choice.exit_at).stops[0] > 0.3


def test_one_member_is_no_cascade() -> None:
    members = scored()
    alone = Members({"small": members.scores["small"]}, members.labels, {"small": 1.0}, members.costs)
    with pytest.raises(ScriptError, match="2 to 4 members"):
        choose(alone, 1.0)


def test_what_no_threshold_allows_is_told() -> None:
    members = scored()
    with pytest.raises(ScriptError, match="no cascade loses at most -1"):
        choose(members, -1.0)


def test_a_share_has_wilsons_interval_and_a_difference_the_normal_one() -> None:
    share = Interval.share(np.array([True] * 90 + [False] * 10))
    assert (share.mean, round(share.low, 2), round(share.high, 2)) == (90.0, 82.56, 94.48)
    assert Interval.paired(np.zeros(100)) == Interval(0.0, -3.0, 3.0)
    paired = Interval.paired(np.array([1.0] * 5 + [0.0] * 90 + [-1.0] * 5))
    assert (paired.mean, round(paired.low, 2), round(paired.high, 2)) == (0.0, -6.2, 6.2)


def test_the_command_chooses_on_one_half_and_judges_on_the_other(
    tmp_path: Path, draw: Draw, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Always sure and always right, so that the first is enough.
    add(tmp_path / "models", "a", constant([0.05, 0.9, 0.05]), "FP16")
    add(tmp_path / "models", "b", constant([0.1, 0.8, 0.1]), "FP16")
    told = tmp_path / "told.json"
    flags = ["--data", str(draw({"cat": 40})), "--repository", str(tmp_path / "models"), "--members", "a", "b"]
    monkeypatch.setattr(sys, "argv", ["tune_cascade", *flags, "--json", str(told), "--loss", "5"])
    main()
    written = json.loads(told.read_text())
    first = written["order"][0]
    assert written["stops"][first] == 1.0
    assert written["images"] == {"chosen_on": 20, "judged_on": 20}
    assert (written["top1"]["mean"], written["difference"]["mean"]) == (100.0, 0.0)
    printed = capsys.readouterr().out
    order = written["order"]
    versions = ", ".join(f"{name}: 1" for name in order)
    assert f"\ncascade: {{order: [{', '.join(order)}], exit_at: [0.0], versions: {{{versions}}}}}\n" in printed


def test_few_images_choose_as_well_and_the_loss_that_they_allow_is_printed(
    tmp_path: Path, draw: Draw, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It refused: 2,000 labelled images were wanted for a loss of 0.1 points."""
    for name, sure in {"a": 0.9, "b": 0.8}.items():
        add(tmp_path / "models", name, constant([0.05, sure, 0.05]), "FP16")
    flags = ["--data", str(draw({"cat": 40})), "--repository", str(tmp_path / "models"), "--loss", "0.1"]
    for order in (["a", "b"], ["b", "a"]):
        monkeypatch.setattr(sys, "argv", ["tune_cascade", *flags, "--order", *order])
        main()
        printed = capsys.readouterr().out
        assert printed.startswith("20 images choose, 20 others judge, and can show a loss of 15 points or more")
        assert "--loss 0.1 needs 6,000 images in all" in printed
        assert "so the cascade loses at most 15.00 points" in printed
        assert f"order: [{', '.join(order)}]" in printed


def test_what_is_printed_is_the_whole_of_what_was_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    scores = {name: np.array([[0.9, 0.1]] * 4, np.float32) for name in ("gate", "one")}
    members = Members(scores, np.zeros(4, np.int64), {"gate": 0.0, "one": 1.0}, {"gate": 1.0, "one": 2.0})
    report(members, np.array([True, False] * 2), Choice(("gate", "one"), (0.5,)), {"gate": 3, "one": 1})
    printed = capsys.readouterr().out
    ensemble = next(line for line in printed.splitlines() if line.startswith("cascade:"))
    *_, combiner = printed.splitlines()
    cascade = {"order": ["gate", "one"], "exit_at": [0.5], "versions": {"gate": 3, "one": 1}}
    assert yaml.safe_load(ensemble) == {"cascade": cascade}
    rungs = yaml.safe_load(printed[printed.index("ladder:") : printed.index("combiner:")])
    QuorumSettings.model_validate({"cascade": {**yaml.safe_load(ensemble)["cascade"], **rungs, "audit": 0.01}})
    assert yaml.safe_load(combiner) == {"combiner": {"method": "mean", "weights": {"gate": 0, "one": 1}}}


def test_a_wrong_gate_is_errors_in_one_line(tmp_path: Path, draw: Draw, monkeypatch: pytest.MonkeyPatch) -> None:
    add(tmp_path / "models", "a", constant([0.05, 0.9, 0.05]), "FP16")
    flags = ["--data", str(draw({"cat": 4})), "--repository", str(tmp_path / "models"), "--members", "a"]
    monkeypatch.setattr(sys, "argv", ["tune_cascade", *flags, "--gates", "c", "--loss", "50"])
    with pytest.raises(SystemExit, match="error: --gates: 'c' is none of the members"):
        main()
    monkeypatch.setattr(sys, "argv", ["tune_cascade", *flags, "--gates", "a", "--loss", "50"])
    with pytest.raises(SystemExit, match="error: --gates: a member that is no gate is needed"):
        main()


def test_it_chooses_on_images_that_training_left_out_alone(
    tmp_path: Path, draw: Draw, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = draw({"cat": 60})
    source = {"tool": "scripts.train", "recipe": {"hold_out": 40}, "sha256": sha256(data), "initial": None}
    for name in ("a", "b"):
        add(tmp_path / "models", name, constant([0.05, 0.9, 0.05]), "FP16", source=source)
    flags = ["--data", str(data), "--repository", str(tmp_path / "models"), "--members", "a", "b", "--loss", "5"]
    monkeypatch.setattr(sys, "argv", ["tune_cascade", *flags])
    with pytest.raises(SystemExit, match=r"'a' was trained on .* has learnt some of these 60 images"):
        main()
    monkeypatch.setattr(sys, "argv", ["tune_cascade", *flags, "--hold-out", "40"])
    main()
    assert "chosen on 20 images, judged on 20 others" in capsys.readouterr().out


def test_a_member_without_which_the_others_are_as_good_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    members = drawn({"a": 1.0, "b": 1.0}, 2_000, costs={"a": 1.0, "b": 1.0, "twin": 9.0})
    scores = {"twin": members.scores["a"], **members.scores}
    three = Members(scores, members.labels, dict.fromkeys(scores, 1.0), members.costs)
    kept = worthwhile(three, np.arange(2_000) < 1_000)
    assert set(kept.scores) == set(kept.weights) == set(kept.costs) == {"a", "b"}
    assert "a + b is as good without twin; --order names all members" in capsys.readouterr().out


def test_where_one_member_is_as_good_the_cascade_has_all(capsys: pytest.CaptureFixture[str]) -> None:
    members = drawn({"good": 1.0, "guesses": 0.0}, 1_000)
    assert set(worthwhile(members, np.ones(1_000, np.bool_)).scores) == {"good", "guesses"}
    assert "good by itself is as good as any ensemble" in capsys.readouterr().out
