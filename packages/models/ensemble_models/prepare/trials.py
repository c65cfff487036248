"""Tries the usual normalizations on labelled images, which show how a model takes its images."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from deployments.contract.payload import Pixels, Probabilities
from deployments.contract.preprocessing import Preprocessing
from ensemble_models.dataset import decode
from ensemble_models.options import Table
from ensemble_models.prepare.orders import GIVEN, assignment, most_frequent, permuted
from ensemble_models.prepare.source import WHITE, Normalization, usual
from ensemble_models.statistics import Interval, Truth, hits, less_surprised, log_loss
from scripts.errors import ScriptError

# Ways are tried on so many images first, then on twice as many each time.
FIRST = 25
# Before so many images only a way is dropped that the interval shows to be so many points worse than the best one.
FEW, CLEARLY = 100, 5.0
# Two ways with the same answers on fewer images may differ on more than 6 % of others (rule of three).
ENOUGH = 50
# How means are moved and standard deviations multiplied, so that another normalization than the usual ones shows.
MOVES, FACTORS, STEPS = (0.2, -0.2), (0.6, 1.6), 4
# Images that show it, and the share of right answers that leaves no room for a better one.
FITTED, GOOD = 50, 0.97

Way = tuple[Normalization, Preprocessing]


class Undecided(ScriptError):
    """No usual normalization is better than guessing, or not clearly better than the others."""


def normalized(pixels: Pixels, by: Normalization) -> NDArray[np.float32]:
    """Normalize pixels, uint8 BGR [N,H,W,3], to float32 [N,H,W,3] in the order of the normalization's channels."""
    ordered = pixels if by.order == "BGR" else pixels[..., ::-1]
    scale = WHITE * np.asarray(by.std, np.float32)
    found: NDArray[np.float32] = ordered / scale - np.asarray(by.mean, np.float32) * WHITE / scale
    return found


class Trial:
    """Labelled images, and the network that they are tried on.

    Attributes:
        orders: the orders of the classes that may hold, by name; see `usual_orders`.
        order: the chosen order, at first the first one.
    """

    def __init__(
        self,
        names: Sequence[str],
        encoded: Sequence[bytes],
        truths: Mapping[str, Truth],
        orders: Mapping[str, tuple[str, ...]],
        predict: Callable[[NDArray[np.float32]], Probabilities],
    ) -> None:
        """Take images with their names, class indices by order, int64 [images], and a network.

        Args:
            names: of the images.
            encoded: the images' files.
            truths: the class indices by each order.
            orders: the classes by each order.
            predict: normalized pixels, float32 [N,H,W,3], to float32 [N,classes].
        """
        self.orders, self.order = orders, next(iter(orders))
        self.count, self.encoded = len(encoded), encoded
        self._truths, self._predict = truths, predict
        self._decoded = cache(lambda way, number: decode(names[number], encoded[number], [way])[0])

    @property
    def labels(self) -> Truth:
        """The images' class indices, int64 [images]."""
        return self._truths[self.order]

    def pixels(self, way: Preprocessing, begin: int, end: int) -> Pixels:
        """Return some images' pixels, uint8 BGR [images,height,width,3]."""
        with ThreadPoolExecutor() as threads:
            return np.stack(list(threads.map(lambda number: self._decoded(way, number), range(begin, end))))

    def outputs(self, way: Way, known: Probabilities | None = None, end: int | None = None) -> Probabilities:
        """Predict the first images, or all; `known` has earlier predictions."""
        begin, end = 0 if known is None else len(known), end or self.count
        if begin >= end:
            assert known is not None
            return known
        found = self._predict(normalized(self.pixels(way[1], begin, end), way[0]))
        return found if known is None else np.concatenate([known, found])

    def by_order(self, outputs: Probabilities) -> dict[str, NDArray[np.float64]]:
        """Return for each order which of the first images are right, float64 [images]."""
        return {order: hits(outputs, truth[: len(outputs)]) for order, truth in self._truths.items()}

    def best_order(self, outputs: Probabilities) -> NDArray[np.float64]:
        """Return which of the first images are right in the order that suits best, float64 [images]."""
        return max(self.by_order(outputs).values(), key=np.mean)

    def assigned(self, outputs: Probabilities) -> NDArray[np.float64]:
        """Return which of the first images are right if each output answers the class that suits it best."""
        answers, labels = outputs.argmax(1), self.labels[: len(outputs)]
        right: NDArray[np.float64] = most_frequent(answers, labels, outputs.shape[1])[answers] == labels
        return right.astype(np.float64)

    def race(
        self,
        tried: Sequence[Way],
        most: int | None = None,
        first: Probabilities | None = None,
        measure: Callable[[Probabilities], NDArray[np.float64]] | None = None,
    ) -> list[Probabilities]:
        """Predict few images by several ways, and more only by the ways that may be the best, until one is left.

        Args:
            tried: the ways.
            most: how many images to predict; default: all.
            first: earlier predictions by the first way.
            measure: which images are right, by the probabilities; default: see `best_order`.

        Returns:
            The probabilities by each way, float32 [images,classes], of as many images as it was tried on.
        """
        most, measure = min(most or self.count, self.count), measure or self.best_order
        outputs: list[Probabilities | None] = [first, *[None] * (len(tried) - 1)]
        racing, end = list(range(len(tried))), 0
        while end < most and (len(racing) > 1 or end < FEW):
            end = min(max(FIRST, 2 * end), most)
            right = {}
            for row in racing:
                outputs[row] = known = self.outputs(tried[row], outputs[row], end)
                right[row] = measure(known[:end])
            best = max(right.values(), key=lambda each: float(each.mean()))
            clearly = 0.0 if end >= FEW else CLEARLY
            racing = [row for row in racing if Interval.paired(best - right[row]).low <= clearly]
        return [each[:end] for each in outputs if each is not None]


@dataclass(frozen=True)
class Chosen:
    """A normalization, what it predicts for all images, float32 [images,classes], and what could not be told."""

    normalization: Normalization
    outputs: Probabilities
    doubt: str = ""


def choose_normalization(allowed: Sequence[Normalization], trial: Trial, way: Preprocessing) -> Chosen:
    """Choose the allowed way with which a model is right most often, and the order of the classes; see `Trial`.

    Args:
        allowed: what fits the flags.
        trial: the labelled images.
        way: how they get the model's size.

    Raises:
        Permuted: the outputs are in none of the orders.
        Undecided: the images don't decide, or none is better than guessing.
        ScriptError: a usual one is better than those allowed.
    """
    every = [*allowed, *(each for each in usual() if each not in allowed)]
    outputs = trial.race([(each, way) for each in every])
    best = max(outputs, key=lambda each: (len(each), trial.best_order(each).mean()))
    _choose_order(trial, best)
    labels, classes = trial.labels, outputs[0].shape[1]
    right = [hits(output, labels[: len(output)]) for output in outputs]
    # First those that were tried on all images.
    losses = [log_loss(output, labels[: len(output)]) for output in outputs]
    rows = sorted(range(len(every)), key=lambda row: (-len(right[row]), -right[row].mean(), losses[row]))
    shares = [Interval.share(each > 0) for each in right]
    lines = [(every[row].order, every[row].values, str(shares[row]), str(len(right[row]))) for row in rows]
    Table(("channels", "normalization", "top-1 (95 % interval)", "images"), lines, (0, 1)).show()
    if shares[rows[0]].low <= 100 / classes:
        _check_order(every, trial, way)
        raise Undecided(
            f"none of the usual normalizations is better than guessing one of {classes} classes; say by --labels which "
            "class each output is; --mean, --std and --channel-order set the training's pixels"
        )
    kept = next(row for row in rows if row < len(allowed))
    unlike, alike = list[int](), [kept]
    for row in rows:
        both = min(len(right[row]), len(right[kept]))
        difference = Interval.paired(right[row][:both] - right[kept][:both])
        if row >= len(allowed) and difference.low > 0:
            raise ScriptError(
                f"{every[row].flags} is right more often than what the flags say, by {difference.mean:.1f} points: "
                "pass it, or leave out --data to keep what the flags say"
            )
        same = both >= ENOUGH and np.array_equal(outputs[row][:both].argmax(1), outputs[kept][:both].argmax(1))
        if row == kept or row >= len(allowed) or difference.high < 0 or same:
            continue
        if every[row].is_like(every[kept]):
            alike.append(row)
        elif not less_surprised(outputs[row][:both], outputs[kept][:both], labels[:both]):
            unlike.append(row)
    kept, doubt = _likeliest(alike, every, outputs, labels)
    whole = trial.outputs((every[kept], way), outputs[kept])
    if assignment(whole.argmax(1), labels, classes) is not None:
        _check_order(every, trial, way)
    if unlike:
        raise Undecided(
            f"these {len(labels)} images don't tell {every[kept].flags} from {every[unlike[0]].flags}; pass the flags "
            "of one of them, or more images by --data"
        )
    return Chosen(every[kept], whole, doubt)


def _choose_order(trial: Trial, outputs: Probabilities) -> None:
    """Set the order in which most answers are right; raise ScriptError if that is not clear, or not the given one."""
    right = trial.by_order(outputs)
    trial.order = max(right, key=lambda order: float(right[order].mean()))
    for order, others in right.items():
        difference = Interval.paired(right[trial.order] - others)
        if order == trial.order or difference.mean == 0:
            continue
        if difference.low <= 0:
            raise ScriptError(
                f"these {len(outputs)} images don't tell the {trial.order} order of the classes from the {order} one; "
                "name the outputs by --labels FILE, or say --class-order"
            )
        if order == GIVEN:
            raise ScriptError(
                f"the {trial.order} order of the classes is right more often than the given one, by "
                f"{difference.mean:.1f} points: leave out --labels, or correct the file"
            )


def _check_order(every: Sequence[Normalization], trial: Trial, way: Preprocessing) -> None:
    """Raise Permuted if the outputs are in another order, by the normalization with which that fits best."""
    outputs = trial.race([(each, way) for each in every], measure=trial.assigned)
    best = max(outputs, key=lambda each: (len(each), trial.assigned(each).mean(), trial.best_order(each).mean()))
    if (better := assignment(best.argmax(1), trial.labels[: len(best)], best.shape[1])) is not None:
        raise permuted(better, trial.orders[trial.order], trial.order)


def _likeliest(
    rows: Sequence[int], every: Sequence[Normalization], outputs: Sequence[Probabilities], labels: Truth
) -> tuple[int, str]:
    """Choose among normalizations that hardly differ the one with the least log loss, and name the others."""
    count = min(len(outputs[row]) for row in rows)
    kept = min(rows, key=lambda row: log_loss(outputs[row][:count], labels[:count]))
    others = [row for row in rows if row != kept]
    if not others:
        return kept, ""
    answers = [outputs[row][:count].argmax(1) for row in (kept, others[0])]
    same = Interval.share(answers[0] == answers[1])
    return kept, f"; hardly to be told from {every[others[0]].flags}, which answers {same.mean:.0f} % of them alike"


def neighbours(of: Normalization) -> list[Normalization]:
    """List normalizations with the mean of one channel or of all moved, or with another standard deviation."""
    mean, std = np.array(of.mean), np.array(of.std)
    moved = [mean + move * channels for move in MOVES for channels in np.vstack([np.ones(3), np.eye(3)])]
    scaled = [std * factor for factor in FACTORS]
    return [
        *(Normalization(of.order, tuple(each.tolist()), of.std) for each in moved),
        *(Normalization(of.order, of.mean, tuple(each.tolist())) for each in scaled),
    ]


def better_fit(trial: Trial, chosen: Chosen, way: Preprocessing) -> Normalization | None:
    """Look for a clearly better mean and standard deviation around the chosen ones; None if there is none."""
    kept, outputs = chosen.normalization, chosen.outputs[:FITTED]
    for _ in range(STEPS):
        if trial.by_order(outputs)[trial.order].mean() > GOOD:
            break
        tried = [kept, *neighbours(kept)]
        found = trial.race([(each, way) for each in tried], FITTED, outputs)
        right = [hits(each, trial.labels[: len(each)]) for each in found]
        best = max(range(len(tried)), key=lambda row: (len(right[row]), right[row].mean()))
        difference = Interval.paired(right[best] - right[0][: len(right[best])])
        if best == 0 or difference.low <= 0:
            break
        kept, outputs = tried[best], found[best]
    return None if kept == chosen.normalization else kept
