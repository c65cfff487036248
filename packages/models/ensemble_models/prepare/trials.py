"""Tries the usual normalizations and ways to resize on labelled images, which show how a model takes its images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np
import openvino as ov
from msgspec.structs import replace

from deployments.contract.payload import Pixels, Probabilities
from deployments.contract.preprocessing import Preprocessing
from deployments.transformer.decoding import read_header
from ensemble_models.dataset import LIMITS, decode
from ensemble_models.options import Table
from ensemble_models.prediction import runner
from ensemble_models.prepare.source import CROP_RATIO, Normalization, usual
from ensemble_models.statistics import Interval, Truth, hits
from scripts.errors import ScriptError

# Ways are tried on so many images first, then on twice as many each time.
FIRST = 25
# Before so many images only a way is dropped that the interval shows to be so many points worse than the best one.
FEW, CLEARLY = 100, 5.0
# A way to resize that these images don't show to be better is not worth more of them.
MOST_RESIZED = 200
# Two ways with the same answers on fewer images may differ on more than 6 % of others (rule of three).
ENOUGH = 50


class Trial:
    """Labelled images, each decoded once for all the preprocessings that are tried."""

    def __init__(
        self, names: Sequence[str], encoded: Sequence[bytes], labels: Truth, ways: Sequence[Preprocessing]
    ) -> None:
        """Take images with their names and class indices, int64 [images]."""
        self.labels, self.ways = labels, tuple(ways)
        self._decoded = cache(lambda number: decode(names[number], encoded[number], ways))

    def pixels(self, way: Preprocessing, begin: int, end: int) -> Pixels:
        """Return some images' pixels by one of the ways, uint8 BGR [images,height,width,3]."""
        place = self.ways.index(way)
        with ThreadPoolExecutor() as threads:
            return np.stack([each[place] for each in threads.map(self._decoded, range(begin, end))])

    def race(
        self,
        tried: Sequence[tuple[ov.Model, Preprocessing]],
        most: int | None = None,
        first: Sequence[Probabilities] = (),
    ) -> list[Probabilities]:
        """Predict few images by networks, and more only by the networks that may be the best, until one is left.

        Args:
            tried: networks, uint8 BGR [N,H,W,3] to float32 [N,classes], each with the way that makes its pixels.
            most: how many images to predict; default: all.
            first: earlier predictions of the first network, in parts.

        Returns:
            The probabilities by each network, float32 [images,classes], of as many images as it was tried on.
        """
        most = min(most or len(self.labels), len(self.labels))
        with ThreadPoolExecutor() as threads:
            runners = list(threads.map(lambda each: runner(each[0]), tried))
        outputs = [list(first), *([] for _ in tried[1:])]
        racing, end = list(range(len(tried))), 0
        while end < most and (len(racing) > 1 or end < FEW):
            end = min(max(FIRST, 2 * end), most)
            right = {}
            for row in racing:
                if (known := sum(map(len, outputs[row]))) < end:
                    outputs[row].append(runners[row](self.pixels(tried[row][1], known, end)))
                right[row] = hits(np.concatenate(outputs[row])[:end], self.labels[:end])
            best = max(right.values(), key=lambda each: float(each.mean()))
            clearly = 0.0 if end >= FEW else CLEARLY
            racing = [row for row in racing if Interval.paired(best - right[row]).low <= clearly]
        return [np.concatenate(each)[:end] for each in outputs]


def choose_normalization(
    allowed: Sequence[Normalization], bake: Callable[[Normalization], ov.Model], trial: Trial, way: Preprocessing
) -> tuple[Normalization, Probabilities]:
    """Choose the allowed way with which a model is right most often, and return its predictions, too.

    Args:
        allowed: what fits the flags.
        bake: makes the network with one of them inside, uint8 BGR [N,H,W,3] to float32 [N,classes].
        trial: the labelled images.
        way: how they get the model's size.

    Raises:
        ScriptError: the images don't decide, none is better than guessing, or a usual one is better than those allowed.
    """
    every = [*allowed, *(each for each in usual() if each not in allowed)]
    outputs = trial.race([(bake(each), way) for each in every])
    labels = trial.labels
    right, classes = [hits(output, labels[: len(output)]) for output in outputs], outputs[0].shape[1]
    # First those that were tried on all images.
    rows = sorted(range(len(every)), key=lambda row: (-len(right[row]), -right[row].mean()))
    shares = [Interval.share(each > 0) for each in right]
    lines = [(every[row].order, every[row].values, str(shares[row]), str(len(right[row]))) for row in rows]
    Table(("channels", "normalization", "top-1 (95 % interval)", "images"), lines, (0, 1)).show()
    if shares[rows[0]].low <= 100 / classes:
        raise ScriptError(
            f"none of the usual normalizations is better than guessing one of {classes} classes; say by --labels which "
            "class each output is; --mean, --std and --channel-order set the training's pixels"
        )
    kept = next(row for row in rows if row < len(allowed))
    for row in rows:
        both = min(len(right[row]), len(right[kept]))
        difference = Interval.paired(right[row][:both] - right[kept][:both])
        if row >= len(allowed) and difference.low > 0:
            raise ScriptError(
                f"{every[row].flags} is right more often than what the flags say, by {difference.mean:.1f} points: "
                "pass it, or leave out --data to keep what the flags say"
            )
        same = len(labels) >= ENOUGH and np.array_equal(outputs[row].argmax(1), outputs[kept].argmax(1))
        if row != kept and row < len(allowed) and difference.high >= 0 and not same:
            raise ScriptError(
                f"these {len(labels)} images don't tell {every[kept].flags} from {every[row].flags}; pass the flags of "
                "one of them, or more images by --data"
            )
    return every[kept], outputs[kept]


def ways(given: Preprocessing, encoded: Sequence[bytes]) -> list[Preprocessing]:
    """List the usual ways to resize, the first of which is taken unless another one is clearly better.

    Images that already have the model's size are taken whole first, others are cut as for ImageNet.
    """
    headers = (read_header(image, LIMITS) for image in encoded)
    fits = all((header.height, header.width) == given.size for header in headers)
    ratios = (1.0, CROP_RATIO) if fits else (CROP_RATIO, 1.0)
    return [*(replace(given, crop_ratio=ratio) for ratio in ratios), replace(given, resize="stretch", crop_ratio=1.0)]


def choose_resizing(network: ov.Model, trial: Trial, first: Probabilities) -> tuple[Preprocessing, str]:
    """Choose the way to resize with which a model is right most often, and say why; see `ways`.

    Args:
        network: uint8 BGR [N,H,W,3] to float32 [N,classes].
        trial: the labelled images.
        first: what it predicts for the first images by the first way.
    """
    tried = trial.race([(network, way) for way in trial.ways], MOST_RESIZED, [first])
    right = [hits(each, trial.labels[: len(each)]) for each in tried]
    lines = [
        (way.key, str(Interval.share(each > 0)), str(len(each))) for way, each in zip(trial.ways, right, strict=True)
    ]
    Table(("resizing", "top-1 (95 % interval)", "images"), lines, (0, 1)).show()
    images = max(map(len, right))
    best = max((row for row, each in enumerate(right) if len(each) == images), key=lambda row: right[row].mean())
    if len(right[0]) < images or Interval.paired(right[best] - right[0]).low > 0:
        return trial.ways[best], f"the best on {images} images"
    reason = "the images have the model's size" if trial.ways[0].crop_ratio == 1 else "as for ImageNet"
    return trial.ways[0], f"{reason}; no other way is clearly better on {min(map(len, right))} images"
