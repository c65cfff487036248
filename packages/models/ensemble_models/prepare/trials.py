"""Tries the usual normalizations on labelled images, which show how a model takes its images."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from deployments.contract.payload import Pixels, Probabilities
from deployments.contract.preprocessing import Preprocessing
from ensemble_models.dataset import decode
from ensemble_models.options import Table
from ensemble_models.prepare.orders import GIVEN, Permuted, assignment, most_frequent
from ensemble_models.prepare.source import PER_IMAGE, WHITE, Normalization, rare, usual
from ensemble_models.statistics import Interval, Truth, hits, less_surprised, log_loss
from scripts.errors import ScriptError

# Ways are tried on so many images first, then on twice as many each time.
FIRST = 25
# Before so many images only a way is dropped that the interval shows to be so many points worse than the best one.
FEW, CLEARLY = 100, 5.0
# So many images of each class show which output answers it; then so large a share of right answers more is no chance.
FEWEST_OF_CLASS, FAR_BETTER = 3, 0.25
# Two ways with the same answers on fewer images may differ on more than 6 % of others (rule of three).
ENOUGH = 50
# How means are moved and standard deviations multiplied, so that another normalization than the usual ones shows.
MOVES, FACTORS, STEPS = (0.2, -0.2), (0.6, 1.6), 4
# So many of the images that the chosen normalization gets wrong select another one.
FITTED = 25
# If fewer become right, and none wrong, the interval of the gain reaches 0.
FEWEST_MENDED = 4

BETTER = "is right more often than what the flags say: pass it, or leave out --data to keep what the flags say"
ITSELF = (
    "the model is right more often if each image is less its own mean and divided by its own standard deviation, which "
    "the server does not do: export the model with this step inside"
)

Way = tuple[Normalization, Preprocessing]


class Undecided(ScriptError):
    """No usual normalization is better than guessing, or not clearly better than the others."""


def normalized(pixels: Pixels, by: Normalization) -> NDArray[np.float32]:
    """Normalize pixels, uint8 BGR [N,H,W,3], to float32 [N,H,W,3] in the order of the normalization's channels."""
    ordered = pixels if by.order == "BGR" else pixels[..., ::-1]
    if by.name == PER_IMAGE:
        rows = ordered.reshape(len(ordered), -1)
        middle, spread = rows.mean(1), np.maximum(rows.std(1), rows.shape[1] ** -0.5)
        return np.asarray((ordered - middle[:, None, None, None]) / spread[:, None, None, None], np.float32)
    scale = WHITE * np.asarray(by.std, np.float32)
    return np.asarray(ordered / scale - np.asarray(by.mean, np.float32) * WHITE / scale, np.float32)


@dataclass
class Trial:
    """Labelled images, and the network that they are tried on.

    Attributes:
        names: of the images.
        encoded: the images' files.
        truths: the class indices by each order, int64 [images].
        orders: the classes by each order that may hold; see `usual_orders`.
        predict: normalized pixels, float32 [N,H,W,3], to float32 [N,classes].
        order: the chosen order, at first the first one.
    """

    names: Sequence[str]
    encoded: Sequence[bytes]
    truths: Mapping[str, Truth]
    orders: Mapping[str, tuple[str, ...]]
    predict: Callable[[NDArray[np.float32]], Probabilities]
    order: str = ""

    def __post_init__(self) -> None:
        self.order = next(iter(self.orders))
        self._decoded = cache(lambda way, number: decode(self.names[number], self.encoded[number], [way])[0])
        self._predicted = dict[Way, Probabilities]()

    def set_order(self, name: str, classes: tuple[str, ...], truth: Truth) -> None:
        """Set the only order that holds, with the images' class indices by it, int64 [images]."""
        self.orders, self.truths, self.order = {name: classes}, {name: truth}, name

    @property
    def labels(self) -> Truth:
        """The images' class indices, int64 [images]."""
        return self.truths[self.order]

    def outputs(self, way: Way, end: int | None = None) -> Probabilities:
        """Predict the first images, or all, float32 [images,classes]; each image once."""
        known, end = self._predicted.get(way), end or len(self.encoded)
        begin = 0 if known is None else len(known)
        if begin < end:
            found = self.predicted(way, range(begin, end))
            self._predicted[way] = found if known is None else np.concatenate([known, found])
        return self._predicted[way][:end]

    def predicted(self, way: Way, rows: Iterable[int]) -> Probabilities:
        """Predict some images, float32 [rows,classes]."""
        with ThreadPoolExecutor() as threads:
            pixels = np.stack(list(threads.map(lambda number: self._decoded(way[1], number), rows)))
        return self.predict(normalized(pixels, way[0]))

    def by_order(self, outputs: Probabilities) -> dict[str, NDArray[np.float64]]:
        """Return for each order which of the first images are right, float64 [images]."""
        return {order: hits(outputs, truth[: len(outputs)]) for order, truth in self.truths.items()}

    def best_order(self, outputs: Probabilities) -> NDArray[np.float64]:
        """Return which of the first images are right in the order that suits best, float64 [images]."""
        return max(self.by_order(outputs).values(), key=np.mean)

    def right(self, outputs: Probabilities) -> NDArray[np.float64]:
        """Return which of the first images are right in the chosen order, float64 [images]."""
        return hits(outputs, self.labels[: len(outputs)])

    def loss(self, outputs: Probabilities) -> float:
        """Compute the log loss of the first images in the chosen order."""
        return log_loss(outputs, self.labels[: len(outputs)])

    def assigned(self, outputs: Probabilities) -> NDArray[np.float64]:
        """Return which of the first images are right if each output answers the class that suits it best."""
        answers, labels = outputs.argmax(1), self.labels[: len(outputs)]
        right: NDArray[np.float64] = most_frequent(answers, labels, outputs.shape[1])[answers] == labels
        return right.astype(np.float64)

    def race(
        self,
        tried: Sequence[Way],
        most: int | None = None,
        measure: Callable[[Probabilities], NDArray[np.float64]] | None = None,
    ) -> list[Probabilities]:
        """Predict few images by several ways, and more only by the ways that may be the best, until one is left.

        Args:
            tried: the ways.
            most: how many images to predict; default: all.
            measure: which images are right, by the probabilities; default: see `best_order`.

        Returns:
            The probabilities by each way, float32 [images,classes], of as many images as it was tried on.
        """
        most, measure = min(most or len(self.encoded), len(self.encoded)), measure or self.best_order
        outputs, racing, end = dict[Way, Probabilities](), list(tried), 0
        while end < most and (len(racing) > 1 or end < FEW):
            end = min(max(FIRST, 2 * end), most)
            outputs |= {way: self.outputs(way, end) for way in racing}
            right = {way: measure(outputs[way]) for way in racing}
            best = max(right.values(), key=lambda each: float(each.mean()))
            clearly = 0.0 if end >= FEW else CLEARLY
            racing = [way for way in racing if Interval.paired(best - right[way]).low <= clearly]
        return [outputs[way] for way in tried]


def choose_normalization(
    allowed: Sequence[Normalization], trial: Trial, way: Preprocessing, *, is_open: bool
) -> tuple[Normalization, str]:
    """Choose the allowed way with which a model is right most often, and the order of the classes; see `Trial`.

    Args:
        allowed: what fits the flags.
        trial: the labelled images.
        way: how they get the model's size.
        is_open: whether a rare normalization is allowed, too.

    Returns:
        The normalization, and a clause on what could not be told.

    Raises:
        Permuted: the outputs are in none of the orders.
        Undecided: the images don't decide, or none is better than guessing.
        ScriptError: another one is better than those allowed.
    """
    every = [*allowed, *(each for each in usual() if each not in allowed)]
    outputs = dict(zip(every, trial.race([(each, way) for each in every]), strict=True))
    _choose_order(trial, max(outputs.values(), key=lambda each: (len(each), trial.best_order(each).mean())))
    right = {each: trial.right(output) for each, output in outputs.items()}
    # First those that were tried on all images.
    rows = sorted(every, key=lambda row: (-len(right[row]), -right[row].mean(), trial.loss(outputs[row])))
    shares = {row: Interval.share(right[row] > 0) for row in rows}
    lines = [(row.order, row.values, str(shares[row]), str(len(right[row]))) for row in rows]
    Table(("channels", "normalization", "top-1 (95 % interval)", "images"), lines, (0, 1)).show()
    classes = outputs[rows[0]].shape[1]
    if shares[rows[0]].low <= 100 / classes:
        _check_order(every, trial, way)
        raise Undecided(
            f"none of the usual normalizations is better than guessing one of {classes} classes; say by --labels which "
            "class each output is; --mean, --std and --channel-order set the training's pixels"
        )
    kept = next(row for row in rows if row in allowed)
    if _may_be_permuted(trial, trial.outputs((kept, way)), outputs.values()):
        _check_order(every, trial, way)
    unlike, alike = list[Normalization](), [kept]
    for row in rows:
        both = min(len(right[row]), len(right[kept]))
        difference = Interval.paired(right[row][:both] - right[kept][:both])
        if row not in allowed:
            if difference.low > 0:
                raise ScriptError(f"{row.flags} {BETTER}")
            continue
        mine, kepts = outputs[row][:both], outputs[kept][:both]
        same = both >= ENOUGH and np.array_equal(mine.argmax(1), kepts.argmax(1))
        if row == kept or difference.high < 0 or same:
            continue
        if row.is_like(kept):
            alike.append(row)
        elif not less_surprised(mine, kepts, trial.labels[:both]):
            unlike.append(row)
    kept, doubt = _likeliest(alike, outputs, trial)
    if (better := more_right(trial, kept, way, rare(kept.order))) is not None:
        if better.name == PER_IMAGE or not is_open:
            raise ScriptError(ITSELF if better.name == PER_IMAGE else f"{better.flags} {BETTER}")
        alike = [each for each in rare(kept.order) if each.name != PER_IMAGE and each.is_like(better)]
        return _likeliest(alike, {each: trial.outputs((each, way)) for each in alike}, trial)
    if unlike:
        raise Undecided(
            f"these {len(trial.labels)} images don't tell {kept.flags} from {unlike[0].flags}; pass the flags "
            "of one of them, or more images by --data"
        )
    return kept, doubt


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


def _may_be_permuted(trial: Trial, kept: Probabilities, tried: Iterable[Probabilities]) -> bool:
    """Check whether the outputs may be in another order, in which another one of the tried normalizations may be best.

    Of few images for each class every assignment of outputs fits, so that only the kept normalization is checked.
    """
    classes, most = kept.shape[1], trial.right(kept).mean() + FAR_BETTER
    if assignment(kept.argmax(1), trial.labels, classes) is not None:
        return True
    return len(trial.labels) >= FEWEST_OF_CLASS * classes and any(trial.assigned(each).mean() > most for each in tried)


def _check_order(every: Sequence[Normalization], trial: Trial, way: Preprocessing) -> None:
    """Raise Permuted if the outputs are in another order, by the normalization with which that fits best."""
    outputs = trial.race([(each, way) for each in every], measure=trial.assigned)
    best = max(outputs, key=lambda each: (len(each), trial.assigned(each).mean(), trial.best_order(each).mean()))
    if (better := assignment(best.argmax(1), trial.labels[: len(best)], best.shape[1])) is not None:
        raise Permuted(better, trial.orders[trial.order], trial.order)


def _likeliest(
    rows: Sequence[Normalization], outputs: Mapping[Normalization, Probabilities], trial: Trial
) -> tuple[Normalization, str]:
    """Choose among normalizations that hardly differ the one with the least log loss, and name another one."""
    count = min(len(outputs[row]) for row in rows)
    kept = min(rows, key=lambda row: trial.loss(outputs[row][:count]))
    other = next((row for row in rows if row != kept), None)
    if other is None:
        return kept, ""
    same = (outputs[kept][:count].argmax(1) == outputs[other][:count].argmax(1)).mean()
    return kept, f"; hardly to be told from {other.flags}, which answers {100 * same:.0f} % of them alike"


def neighbours(of: Normalization) -> list[Normalization]:
    """List normalizations with the mean of one channel or of all moved, or with another standard deviation."""
    mean, std = np.array(of.mean), np.array(of.std)
    moved = [mean + move * channels for move in MOVES for channels in np.vstack([np.ones(3), np.eye(3)])]
    scaled = [std * factor for factor in FACTORS]
    return [
        *(Normalization(of.order, tuple(each.tolist()), of.std) for each in moved),
        *(Normalization(of.order, of.mean, tuple(each.tolist())) for each in scaled),
    ]


def more_right(
    trial: Trial, kept: Normalization, way: Preprocessing, tried: Sequence[Normalization]
) -> Normalization | None:
    """Find one of several normalizations that is clearly right more often than the kept one; None if there is none.

    Only images that the kept one gets wrong can become right, so some of them select, and all images judge.
    """
    right = trial.right(trial.outputs((kept, way)))
    wrong = np.flatnonzero(right == 0)[:FITTED]
    if len(wrong) < FEWEST_MENDED:
        return None
    mended = [hits(trial.predicted((each, way), wrong), trial.labels[wrong]).sum() for each in tried]
    best = tried[int(np.argmax(mended))]
    if max(mended) < FEWEST_MENDED:
        return None
    others = trial.right(trial.race([(kept, way), (best, way)])[1])
    return best if Interval.paired(others - right[: len(others)]).low > 0 else None


def better_fit(trial: Trial, chosen: Normalization, way: Preprocessing) -> Normalization | None:
    """Look for a clearly better mean and standard deviation around the chosen ones; None if there is none."""
    kept = None
    for _ in range(STEPS):
        if (better := more_right(trial, kept or chosen, way, neighbours(kept or chosen))) is None:
            break
        kept = better
    return kept
