"""Which members pay: the top-1 of every subset of members beside its cost, and a choice that other images judge.

Sources: Caruana et al., ICML 2004 (forward selection); Varma and Simon, 2006, https://doi.org/10.1186/1471-2105-7-91
(nested cross-validation).
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from deployments.combiner import VOTES, combine
from deployments.contract.payload import Probabilities
from deployments.contract.proportion import Z
from ensemble_models.ensembles import Members
from ensemble_models.statistics import Interval, of_labels
from scripts.errors import ScriptError

METHODS = ("mean", "geometric_mean", VOTES)
# Of more members than these, a subset grows member by member.
MOST_MEMBERS = 10
FOLDS, REPEATS = 5, 3
# Steps of the fit of weights, which ends after them whether or not the weights still change.
STEPS = 30
# The difference of top-1, points, that the advice on the number of images is about.
APART = 0.5

Right = NDArray[np.bool_]
# Some of the images: bool [N], or all.
Rows = Right | slice
ALL = slice(None)


@dataclass(frozen=True)
class Subset:
    """Some members, and how they are combined.

    Attributes:
        names: the members, in the configuration's order.
        method: a method of the combiner.
        fitted: whether weights are fitted to images; otherwise they are equal.
    """

    names: tuple[str, ...]
    method: str = "mean"
    fitted: bool = False

    def __str__(self) -> str:
        form = "" if self.method == "mean" else f", {self.method}"
        return " + ".join(self.names) + form + (", fitted weights" if self.fitted else "")


@dataclass(frozen=True)
class Limits:
    """What a choice must keep: the most CPU time per image, ms, and the least top-1, percent; None for any."""

    max_cost: float | None = None
    min_top1: float | None = None


ANY = Limits()


@dataclass(frozen=True)
class Panel:
    """The members' predictions, with the answers of each subset that was looked at.

    Attributes:
        members: their predictions, labels and costs.
        equal: by subset, its answers with equal weights: whether each is right, bool [N], and its log loss, [N].
    """

    members: Members
    equal: dict[Subset, tuple[Right, NDArray[np.float64]]] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """The members."""
        return tuple(self.members.scores)

    def cost(self, subset: Subset) -> float:
        """Add the costs of a subset's members."""
        return sum(self.members.costs[name] for name in subset.names)

    def weights(self, subset: Subset, rows: Rows = ALL) -> list[float]:
        """Compute the weights of a subset's members, which the images `rows` decide if they are fitted."""
        if not subset.fitted:
            return [1.0] * len(subset.names)
        if subset.method == VOTES:
            return [self._vote(name, rows) for name in subset.names]
        labels = self.members.labels[rows]
        return mixture(np.stack([of_labels(self.members.scores[name][rows], labels) for name in subset.names]))

    def answers(self, subset: Subset, rows: Rows = ALL) -> tuple[Right, NDArray[np.float64]]:
        """Return whether a subset is right about each image, [N], and its log loss, [N]; `rows` fit its weights."""
        if subset in self.equal:
            return self.equal[subset]
        scores, labels = [self.members.scores[name] for name in subset.names], self.members.labels
        combined: Probabilities = combine(scores, self.weights(subset, rows), subset.method)
        found = combined.argmax(axis=1) == labels, -np.log(of_labels(combined, labels))
        if not subset.fitted:
            self.equal[subset] = found
        return found

    def _vote(self, name: str, rows: Rows) -> float:
        """Weigh a vote by its log-odds of being right (Nitzan and Paroush, 1982, doi:10.2307/2526438)."""
        scores, labels = self.members.scores[name][rows], self.members.labels[rows]
        right, wrong = (scores.argmax(axis=1) == labels).sum() + 1, (scores.argmax(axis=1) != labels).sum() + 1
        return max(0.01, math.log((scores.shape[1] - 1) * right / wrong))


def mixture(probabilities: NDArray[np.float64]) -> list[float]:
    """Fit the weights of a mean by its likelihood, with the EM algorithm (Dempster et al., 1977).

    Args:
        probabilities: of the right class, by each member, [members,N].
    """
    weights = np.full(len(probabilities), 1 / len(probabilities))
    for _ in range(STEPS):
        parts = weights[:, None] * probabilities
        weights = (parts / parts.sum(axis=0)).mean(axis=1)
    return [round(float(weight), 2) or 0.01 for weight in weights]


def pool(panel: Panel, rows: Rows = ALL, methods: Sequence[str] = METHODS) -> Iterator[Subset]:
    """Yield the subsets that a choice on some images is made of: all of few members, a growing one of many."""
    yield from (Subset((name,)) for name in panel.names)
    sizes = range(2, len(panel.names) + 1)
    every = itertools.chain.from_iterable(itertools.combinations(panel.names, size) for size in sizes)
    for names in every if len(panel.names) <= MOST_MEMBERS else _grown(panel, rows):
        for method in methods:
            # Two votes are a tie, which the mean decides.
            yield from (Subset(names, method, fitted) for fitted in (False, True) if method != VOTES or len(names) > 2)


def _grown(panel: Panel, rows: Rows) -> Iterator[tuple[str, ...]]:
    """Add the member that is best beside those before it, again and again."""
    grown: set[str] = set()
    while len(grown) < len(panel.names):
        larger = [
            tuple(each for each in panel.names if each in {*grown, new}) for new in panel.names if new not in grown
        ]
        best = max(larger, key=lambda names: panel.answers(Subset(names), rows)[0][rows].mean())
        grown = set(best)
        if len(best) > 1:
            yield best


def choose(panel: Panel, rows: Rows = ALL, limits: Limits = ANY, methods: Sequence[str] = METHODS) -> Subset:
    """Choose a subset by some images: the cheapest of the subsets that are as good as the best one.

    The best one has the highest top-1. Others are as good if the images show no difference: neither their top-1 nor
    their log loss is worse by more than a standard error of the paired difference. A form that is not the mean with
    equal weights has to be better than it by as much.

    Raises:
        ScriptError: no subset keeps the limits.
    """
    candidates = list(pool(panel, rows, methods))
    found = [panel.answers(each, rows) for each in candidates]
    right = np.stack([hits[rows] for hits, _ in found]).astype(np.float64)
    loss = np.stack([losses[rows] for _, losses in found])
    costs = np.array([panel.cost(each) for each in candidates])
    top1, plain = 100 * right.mean(axis=1), np.array([each.method == "mean" and not each.fitted for each in candidates])
    kept = (costs <= (limits.max_cost or math.inf)) & (top1 >= (limits.min_top1 or 0))
    if not kept.any():
        raise ScriptError(
            f"no subset keeps --max-cost and --min-top1: top-1 reaches {top1.max():.2f} %, "
            f"at {costs[top1.argmax()]:.2f} ms per image, and the cheapest member takes {costs.min():.2f} ms"
        )
    as_good = kept & _near(right[(top1 - 100 * ~kept).argmax()] - right)
    as_good &= _near(loss - loss[np.where(as_good, loss.mean(axis=1), math.inf).argmin()])
    order = np.lexsort([-top1, ~plain, costs.round(6), ~as_good])
    return candidates[int(order[0])]


def _near(worse: NDArray[np.float64]) -> Right:
    """Check for each row of differences, [subsets,N], that its mean is within a standard error of 0, or below 0."""
    return np.asarray(worse.mean(axis=1) <= worse.std(axis=1) / math.sqrt(worse.shape[1]) + 1e-12, np.bool_)


@dataclass(frozen=True)
class Expected:
    """What a choice made on these images is worth on other ones.

    The intervals hold what as many other images would show, at 95 %, so they count the choosing, and the chance of
    either set of images.

    Attributes:
        top1: of the chosen subset, percent.
        gain: over the best member, points.
        enough: how many images would tell half a point apart.
    """

    top1: Interval
    gain: Interval
    enough: int


def expected(panel: Panel, limits: Limits = ANY, methods: Sequence[str] = METHODS) -> Expected:
    """Estimate by repeated, nested cross-validation the top-1 of `choose` on images that chose nothing."""
    images, random = len(panel.members.labels), np.random.default_rng(0)
    right, best = np.empty((2, REPEATS, images))
    reached = list[tuple[float, float]]()
    members = {name: scores.argmax(axis=1) == panel.members.labels for name, scores in panel.members.scores.items()}
    for repeat, fold in tqdm(list(itertools.product(range(REPEATS), range(FOLDS))), desc="judge", leave=False):
        if fold == 0:
            folds = random.permutation(images) % FOLDS
        judges = folds == fold
        chosen = panel.answers(choose(panel, ~judges, limits, methods), ~judges)[0]
        single = max((members[name] for name in panel.names), key=lambda hits: hits[~judges].mean())
        right[repeat, judges], best[repeat, judges] = chosen[judges], single[judges]
        reached.append((chosen.mean(), chosen.mean() - single.mean()))
    of_top1, of_gain = np.var(reached, axis=0).tolist()
    gains = right - best
    enough = math.ceil((Z * 100 * gains.std() / APART) ** 2)
    return Expected(_interval(right, of_top1), _interval(gains, of_gain), enough)


def _interval(values: NDArray[np.float64], spread: float) -> Interval:
    """Return the mean of values, [repeats,N], and where the mean of as many others lies at 95 %.

    `spread` is the variance between the choices that different images lead to.
    """
    images, mean = values.shape[1], float(values.mean())
    # Where no image differs, 3 of as many others may (the rule of three).
    half = Z * math.sqrt(2 * values.var() / images + spread) or 3 / images
    return Interval(100 * mean, 100 * max(mean - half, -1), 100 * min(mean + half, 1))


def front(panel: Panel, candidates: Sequence[Subset]) -> list[Subset]:
    """Select the subsets that no cheaper one equals in top-1, from the cheapest to the best."""
    found: list[Subset] = []
    reached = -1.0
    top1 = {each: float(panel.answers(each)[0].mean()) for each in candidates}
    for each in sorted(
        candidates, key=lambda one: (panel.cost(one), -top1[one], one.fitted, METHODS.index(one.method))
    ):
        if top1[each] > reached:
            found.append(each)
            reached = top1[each]
    return found


def overlap(members: Members) -> Iterator[str]:
    """Describe for each pair of members how their errors overlap."""
    said = {name: each.argmax(axis=1) for name, each in members.scores.items()}
    for one, other in itertools.combinations(said, 2):
        wrong = [said[name] != members.labels for name in (one, other)]
        both, either = (wrong[0] & wrong[1]).mean(), (wrong[0] | wrong[1]).mean()
        common = f"{both / either:.0%} of their errors" if either else "no error"
        yield (
            f"{one} and {other} have {common} in common; they disagree on {(said[one] != said[other]).mean():.1%} "
            "of the images."
        )
