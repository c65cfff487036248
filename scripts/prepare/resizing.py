"""How images get a model's size, where neither the model nor a flag says it."""

from __future__ import annotations

from collections.abc import Sequence

import openvino as ov
from msgspec.structs import replace

from deployments.contract.preprocessing import Preprocessing
from deployments.transformer.decoding import read_header
from scripts.dataset import LIMITS
from scripts.evaluate.accuracy import Truth, decode_all, hits
from scripts.interval import Interval
from scripts.prepare.normalization import predict
from scripts.prepare.source import CROP_RATIO
from scripts.results import Table


def choose(
    network: ov.Model, given: Preprocessing, names: Sequence[str], encoded: Sequence[bytes], labels: Truth
) -> tuple[Preprocessing, str]:
    """The usual way to resize with which a model is right most often, and why it is taken.

    Images that already have the model's size are taken whole, others are cut as for ImageNet, unless another way is
    clearly better (95 % interval, paired by image).

    Args:
        network: uint8 BGR [N,H,W,3] to float32 [N,classes].
        given: the size and the interpolation of its images.
        names: of labelled images.
        encoded: the images.
        labels: each image's class index, int64 [images].
    """
    headers = (read_header(image, LIMITS) for image in encoded)
    fits = all((header.height, header.width) == given.size for header in headers)
    ratios = (1.0, CROP_RATIO) if fits else (CROP_RATIO, 1.0)
    ways = [*(replace(given, crop_ratio=ratio) for ratio in ratios), replace(given, resize="stretch", crop_ratio=1.0)]
    right = [hits(predict(network, decode_all(names, encoded, way)), labels) for way in ways]
    lines = [(way.key, str(Interval.share(each > 0))) for way, each in zip(ways, right, strict=True)]
    Table(("resizing", "top-1 (95 % interval)"), lines, (0, 1), f"{len(labels)} images").show()
    best = max(range(len(ways)), key=lambda way: right[way].mean())
    if Interval.paired(right[best] - right[0]).low > 0:
        return ways[best], f"the best on {len(labels)} images"
    reason = "the images have the model's size" if fits else "as for ImageNet"
    return ways[0], f"{reason}; no other way is clearly better on {len(labels)} images"
