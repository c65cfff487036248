"""Tries the usual ways to resize on labelled images, and chooses the way with the highest top-1."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from deployments.contract.payload import Probabilities
from deployments.contract.preprocessing import Preprocessing
from deployments.transformer.decoding import read_header
from ensemble_models.dataset import LIMITS
from ensemble_models.options import Table
from ensemble_models.prepare.source import CROP_RATIO, Normalization
from ensemble_models.prepare.trials import Trial
from ensemble_models.statistics import Interval, hits, less_surprised, log_loss

# A way to resize that these images don't show to be better is not worth more of them.
MOST_RESIZED = 200


def ways(given: Preprocessing, encoded: Sequence[bytes]) -> list[Preprocessing]:
    """List the usual ways to resize, the first of which is taken unless another one is clearly better.

    Images that already have the model's size are taken whole first, others are cut as for ImageNet.
    """
    headers = (read_header(image, LIMITS) for image in encoded)
    fits = all((header.height, header.width) == given.size for header in headers)
    ratios = (1.0, CROP_RATIO) if fits else (CROP_RATIO, 1.0)
    whole = [replace(given, resize=resize, crop_ratio=1.0) for resize in ("stretch", "letterbox")]
    return [*(replace(given, crop_ratio=ratio) for ratio in ratios), *whole]


def choose_resizing(
    trial: Trial, normalization: Normalization, tried: Sequence[Preprocessing], first: Probabilities
) -> tuple[Preprocessing, str]:
    """Choose the way to resize with which a model is right most often, and say why; see `ways`.

    A way is also better if it makes the right classes likelier, by the paired interval of the log loss.

    Args:
        trial: the labelled images.
        normalization: the chosen one.
        tried: the ways.
        first: what the model predicts for the first images by the first way.
    """
    outputs = trial.race([(normalization, way) for way in tried], MOST_RESIZED, first)
    right = [hits(each, trial.labels[: len(each)]) for each in outputs]
    lines = [(way.key, str(Interval.share(each > 0)), str(len(each))) for way, each in zip(tried, right, strict=True)]
    Table(("resizing", "top-1 (95 % interval)", "images"), lines, (0, 1)).show()
    images = max(map(len, right))
    rows = [row for row, each in enumerate(right) if len(each) == images]
    best = max(rows, key=lambda row: (right[row].mean(), -log_loss(outputs[row], trial.labels[:images])))
    if len(right[0]) < images or Interval.paired(right[best] - right[0]).low > 0:
        return tried[best], f"the best on {images} images"
    if best and less_surprised(outputs[0], outputs[best], trial.labels[:images]):
        return tried[best], f"the likeliest on {images} images"
    return tried[0], f"no other one is clearly better on {min(map(len, right))} images"
