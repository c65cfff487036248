"""The order of a model's classes: the usual orders of folders' names, and the order that images show."""

import re
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from ensemble_models.dataset import folder_name
from ensemble_models.statistics import Interval, Truth
from scripts.errors import ScriptError

ALPHABETICAL, GIVEN, IMAGES = "alphabetical", "given", "images"


class Permuted(ScriptError):
    """The outputs are in another order than any that was expected; the message names the first pairs.

    Attributes:
        found: for each output, the index of the class that it answers, int64 [classes].
    """

    def __init__(self, better: tuple[Truth, Interval], names: Sequence[str], order: str) -> None:
        """Describe a better assignment than the classes in the order of this name; see `assignment`."""
        self.found, difference = better
        pairs = [(output, names[self.found[output]], name) for output, name in enumerate(names)]
        moved = [each for each in pairs if each[1] != each[2]]
        shown = ", ".join(f"output {output} answers {new!r} and not {old!r}" for output, new, old in moved[:3])
        super().__init__(
            f"the outputs are in another order than the {order} one of the classes: {shown}"
            f"{', ...' if moved[3:] else ''}; with the order that these images show, {difference.mean:.1f} points more "
            "are right. Name the outputs by --labels FILE, in the order of the training, or take what the images show "
            "by --class-order images"
        )


def natural(name: str) -> list[tuple[int, str]]:
    """Return what timm sorts folders by: without case, numbers by their value."""
    parts = re.split(r"(\d+)", name.lower())
    return [(int(part), "") if part.isdigit() else (-1, part) for part in parts]


def usual_orders(
    folders: Sequence[str], others: Iterable[tuple[str, Sequence[str]]], given: Sequence[str] | None = None
) -> dict[str, tuple[str, ...]]:
    """List the orders in which training may have numbered the classes, each once, by name.

    Args:
        folders: the classes of which there are images.
        others: other models and their classes; those with the same classes count.
        given: the classes as a file or the weights name them; they come first.
    """
    orders = {} if given is None else {GIVEN: tuple(given)}
    by_folder = {folder_name(name): name for name in given or folders}
    if by_folder.keys() == set(folders):
        names = tuple(by_folder[folder] for folder in sorted(folders))
        orders[ALPHABETICAL] = names
        orders["case-blind"] = tuple(sorted(names, key=str.lower))
        orders["natural"] = tuple(sorted(names, key=natural))
        orders |= {f"that of {model}": tuple(labels) for model, labels in others if set(labels) == set(names)}
    found: dict[str, tuple[str, ...]] = {}
    for name, labels in orders.items():
        if labels not in found.values():
            found[name] = labels
    return found


def assignment(answers: Truth, labels: Truth, classes: int) -> tuple[Truth, Interval] | None:
    """Find for each output the class that it answers, if that is another one than its own.

    Half of the images choose: pairs of an output and a class, the most frequent one first. The other half judges.

    Args:
        answers: the outputs that are the largest, int64 [images].
        labels: the images' classes, int64 [images].
        classes: how many there are.

    Returns:
        The classes by output, int64 [classes], and by how many points of top-1 they are better; None if the given order
        is as good.
    """
    half = len(answers) // 2
    if not half:
        return None
    found = most_frequent(answers[:half], labels[:half], classes)
    difference = Interval.paired(
        (found[answers[half:]] == labels[half:]).astype(float) - (answers[half:] == labels[half:])
    )
    return (found, difference) if difference.low > 0 else None


def most_frequent(answers: Truth, labels: Truth, classes: int) -> Truth:
    """Assign a class to each output, int64 [classes]: the most frequent pair of them first."""
    counts: NDArray[np.int64] = np.zeros((classes, classes), np.int64)
    np.add.at(counts, (answers, labels), 1)
    found = np.full(classes, -1)
    for cell in np.argsort(-counts, axis=None, kind="stable")[: np.count_nonzero(counts)]:
        output, label = divmod(int(cell), classes)
        if found[output] < 0 and label not in found:
            found[output] = label
    left = [label for label in range(classes) if label not in found]
    for output in np.flatnonzero(found < 0).tolist():
        found[output] = left.pop(left.index(output) if output in left else 0)
    return found
