"""A trial: labelled images, and a network that predicts them after one normalization or another."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from deployments.contract.payload import Pixels, Probabilities
from deployments.contract.preprocessing import Preprocessing
from ensemble_models.dataset import decode
from ensemble_models.prepare.orders import most_frequent
from ensemble_models.prepare.source import PER_IMAGE, WHITE, Normalization
from ensemble_models.statistics import Interval, Truth, hits, log_loss

# Ways are tried on so many images first, then on twice as many each time.
FIRST = 25
# Before so many images only a way is dropped that the interval shows to be so many points worse than the best one.
FEW, CLEARLY = 100, 5.0

Way = tuple[Normalization, Preprocessing]


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
