"""The choice among subsets of members, on predictions whose truth is known because they are drawn."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest

from deployments.contract.payload import Probabilities
from ensemble_models.check.choice import Choice
from ensemble_models.ensembles import Members
from ensemble_models.subsets import MOST_MEMBERS, Limits, Panel, Subset, choose, expected, front, mixture, pool
from scripts.errors import ScriptError

CLASSES = 10


def drawn(skills: dict[str, float], images: int, seed: int = 0, costs: dict[str, float] | None = None) -> Members:
    """Draw members that see each image alike in part, and in part each by itself."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, CLASSES, images)
    ease, seen_by_all = random.gamma(2.0, 1.0, (images, 1)), 1.6 * random.normal(size=(images, CLASSES))
    scores: dict[str, Probabilities] = {}
    for name, skill in skills.items():
        logits = skill * 5 * ease * np.eye(CLASSES)[labels] + seen_by_all + 1.2 * random.normal(size=(images, CLASSES))
        powers = np.exp(logits - logits.max(axis=1, keepdims=True))
        scores[name] = (powers / powers.sum(axis=1, keepdims=True)).astype(np.float32)
    return Members(scores, labels, dict.fromkeys(skills, 1.0), costs or dict.fromkeys(skills, 1.0))


def part(members: Members, start: int, count: int) -> Panel:
    rows = np.zeros(len(members.labels), np.bool_)
    rows[start : start + count] = True
    return Panel(members.part(rows))


def everything(panel: Panel) -> np.ndarray:
    return np.ones(len(panel.members.labels), np.bool_)


def top1(panel: Panel, subset: Subset, fit: Panel | None = None) -> float:
    """Measure a subset, with weights that other images fitted."""
    if fit is None or not subset.fitted:
        return 100 * float(panel.answers(subset, everything(panel))[0].mean())
    weights = dict(zip(subset.names, fit.weights(subset, everything(fit)), strict=True))
    each = Members({n: panel.members.scores[n] for n in subset.names}, panel.members.labels, weights, weights)
    return 100 * float((each.full() == panel.members.labels).mean())


THREE = {"a": 1.0, "b": 1.04, "c": 0.95}


def test_every_subset_of_few_members_is_looked_at_with_every_method() -> None:
    panel = Panel(drawn(THREE, 50))
    found = list(pool(panel, everything(panel)))
    assert len(set(found)) == len(found)
    groups = {each.names for each in found}
    assert groups == {names for size in (1, 2, 3) for names in itertools.combinations("abc", size)}
    # A member by itself has one form, a pair the two means, and more members votes, too; each with fitted weights.
    assert [sum(each.names == names for each in found) for names in (("a",), ("a", "b"), ("a", "b", "c"))] == [1, 4, 6]


def test_of_many_members_a_subset_grows() -> None:
    skills = {f"m{number}": 0.8 + 0.03 * number for number in range(MOST_MEMBERS + 2)}
    panel = Panel(drawn(skills, 300))
    plain = [each for each in pool(panel, everything(panel)) if each.method == "mean" and not each.fitted]
    sizes = [len(each.names) for each in plain]
    assert sizes == [1] * len(skills) + list(range(2, len(skills) + 1))
    for smaller, larger in itertools.pairwise(plain[len(skills) :]):
        assert set(smaller.names) < set(larger.names)


def test_a_member_that_adds_nothing_is_left_out() -> None:
    """Guesses beside a good member: the choice is the good one by itself, and the record says what the other costs."""
    panel = Panel(drawn({"good": 1.0, "guesses": 0.0}, 2_000))
    assert choose(panel, everything(panel)) == Subset(("good",))
    assert Choice(panel, {}).advice().startswith("Serve good by itself: these images show no ensemble that is better.")


def test_members_that_err_elsewhere_are_chosen_together() -> None:
    panel = Panel(drawn(THREE, 5_000))
    assert choose(panel, everything(panel)).names == ("a", "b", "c")


def test_together_only_the_probabilities_are_better_so_one_member_is_advised() -> None:
    """Both members answer alike, one too sure and one too unsure: of the mean only the log loss is better."""
    members = drawn({"one": 1.0}, 500)
    unsure = members.scores["one"] ** 0.25
    members.scores["other"] = unsure / unsure.sum(axis=1, keepdims=True)
    members.scores["one"] = members.scores["one"] ** 4 / (members.scores["one"] ** 4).sum(axis=1, keepdims=True)
    members.costs["other"] = 1.0
    assert len(choose(Panel(members)).names) == 2
    choice = Choice(Panel(members), {})
    assert len(choice.chosen.names) == 1
    assert "show no ensemble that is better" in choice.advice()


def test_of_subsets_that_are_as_good_the_cheapest_is_chosen() -> None:
    members = drawn({"a": 1.0, "b": 1.0}, 2_000, costs={"a": 1.0, "b": 1.0, "twin": 9.0})
    scores = {"twin": members.scores["a"], **members.scores}
    panel = Panel(Members(scores, members.labels, dict.fromkeys(scores, 1.0), members.costs))
    assert choose(panel, everything(panel)).names == ("a", "b")


def test_limits_bound_the_choice() -> None:
    panel = Panel(drawn(THREE, 2_000, costs={"a": 1.0, "b": 2.0, "c": 3.0}))
    assert panel.cost(choose(panel, everything(panel), Limits(max_cost=3.0))) <= 3
    least = top1(panel, Subset(("a", "b", "c"))) - 0.1
    assert top1(panel, choose(panel, everything(panel), Limits(min_top1=least))) >= least
    with pytest.raises(ScriptError, match=r"no subset keeps --max-cost and --min-top1: top-1 reaches \d+"):
        choose(panel, everything(panel), Limits(max_cost=0.5))


def test_the_interval_holds_what_other_images_show() -> None:
    """One half of the images chooses and states what it expects; the other half shows it."""
    images, splits = 500, 60
    members = drawn(THREE, 2 * images * splits, seed=7)
    held = {"top1": 0, "gain": 0}
    for split in range(splits):
        half, other = (part(members, (2 * split + side) * images, images) for side in (0, 1))
        stated, chosen = expected(half), choose(half, everything(half))
        best = max(half.names, key=lambda name: top1(half, Subset((name,))))
        shown = top1(other, chosen, half)
        held["top1"] += stated.top1.low <= shown <= stated.top1.high
        held["gain"] += stated.gain.low <= shown - top1(other, Subset((best,))) <= stated.gain.high
    # Of 95 % intervals 57 hold it; fewer than 53 do so in 3 of 100 draws.
    assert min(held.values()) >= 53


def test_the_choice_is_nearly_the_best() -> None:
    members = drawn(THREE, 100_000, seed=5)
    truth = Panel(members)
    best = max(top1(truth, each) for each in pool(truth, everything(truth), ("mean",)) if not each.fitted)
    chosen = [choose(half := part(members, 2_500 * split, 2_500), everything(half)) for split in range(10)]
    lost = [best - top1(truth, Subset(each.names)) for each in chosen]
    assert np.median(lost) <= 0.2


def test_fitted_weights_follow_the_likelihood() -> None:
    sure = np.array([[0.9, 0.9, 0.9, 0.1], [0.1, 0.1, 0.1, 0.9]])
    first, second = mixture(sure)
    assert first > second > 0
    grid = np.linspace(0.01, 0.99, 99)
    best = max(grid, key=lambda weight: np.log(weight * sure[0] + (1 - weight) * sure[1]).sum())
    assert abs(first - best) <= 0.02


def test_the_front_rises_with_the_cost() -> None:
    panel = Panel(drawn(THREE, 1_000, costs={"a": 1.0, "b": 2.0, "c": 4.0}))
    found = front(panel, list(pool(panel, everything(panel))))
    costs, reached = [panel.cost(each) for each in found], [top1(panel, each) for each in found]
    assert costs == sorted(set(costs))
    assert reached == sorted(set(reached))
    assert max(reached) == max(top1(panel, each) for each in pool(panel, everything(panel)))


def test_what_each_member_adds_is_said() -> None:
    choice = Choice(Panel(drawn(THREE, 2_000)), {"a": 1.0, "b": 2.0, "c": 3.0})
    said = list(choice.sentences())
    for name in "abc":
        line = next(each for each in said if each.startswith(f"Without {name}: "))
        assert re.search(
            r"[-+]\d\.\d\d points \(paired 95 % interval .*\), 33% less CPU: (better|worse), (not )?certain\.", line
        )
    assert any(each.startswith("a and b have ") and "of their errors in common" in each for each in said)
