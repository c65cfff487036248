"""Tries the usual normalizations on labelled images, which show how a model takes its images."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from deployments.contract.payload import Probabilities
from deployments.contract.preprocessing import Preprocessing
from ensemble_models.options import Table
from ensemble_models.prepare.orders import GIVEN, Permuted, assignment
from ensemble_models.prepare.source import PER_IMAGE, Normalization, rare, usual
from ensemble_models.prepare.trial import Trial
from ensemble_models.statistics import Interval, hits, less_surprised
from scripts.errors import ScriptError

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


class Undecided(ScriptError):
    """No usual normalization is better than guessing, or not clearly better than the others."""


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
