"""How images get a model's size, where neither the model nor a flag says it."""

from __future__ import annotations

from collections.abc import Sequence

import openvino as ov
from msgspec.structs import replace

from deployments.contract.preprocessing import Preprocessing
from deployments.transformer.decoding import read_header
from scripts.dataset import LIMITS
from scripts.evaluate.accuracy import hits
from scripts.interval import Interval
from scripts.prepare.normalization import trial_of
from scripts.prepare.source import CROP_RATIO
from scripts.prepare.trial import Trial
from scripts.results import Table


def ways(given: Preprocessing, encoded: Sequence[bytes]) -> list[Preprocessing]:
    """List the usual ways to resize, the first of which is taken unless another one is clearly better.

    Images that already have the model's size are taken whole first, others are cut as for ImageNet.
    """
    headers = (read_header(image, LIMITS) for image in encoded)
    fits = all((header.height, header.width) == given.size for header in headers)
    ratios = (1.0, CROP_RATIO) if fits else (CROP_RATIO, 1.0)
    return [*(replace(given, crop_ratio=ratio) for ratio in ratios), replace(given, resize="stretch", crop_ratio=1.0)]


def choose(network: ov.Model, trial: Trial) -> tuple[Preprocessing, str]:
    """Choose the way to resize with which a model is right most often, and say why; see `ways`.

    Args:
        network: uint8 BGR [N,H,W,3] to float32 [N,classes].
        trial: the labelled images.
    """
    tried = trial.race([trial_of(network, trial, way) for way in trial.ways], first_is_usual=True)
    right = [hits(each, trial.labels[: len(each)]) for each in tried]
    lines = [
        (way.key, str(Interval.share(each > 0)), str(len(each))) for way, each in zip(trial.ways, right, strict=True)
    ]
    Table(("resizing", "top-1 (95 % interval)", "images"), lines, (0, 1)).show()
    images = len(trial.labels)
    whole = [row for row, each in enumerate(right) if len(each) == images]
    best = max(whole, key=lambda row: right[row].mean())
    if (best and len(right[0]) < images) or Interval.paired(right[best] - right[0]).low > 0:
        return trial.ways[best], f"the best on {images} images"
    reason = "the images have the model's size" if trial.ways[0].crop_ratio == 1 else "as for ImageNet"
    return trial.ways[0], f"{reason}; no other way is clearly better on {min(map(len, right))} images"
