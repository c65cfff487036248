"""What a model's files say of it besides its network: the size of its images, and its precision."""

from __future__ import annotations

from collections import Counter
from math import prod

from deployments.repository.errors import ModelError
from deployments.repository.network import input_size, load, read
from deployments.repository.repository import Model

PRECISIONS = ("FP32", "FP16", "INT8")


def image_size(model: Model) -> tuple[int, int]:
    """Return height and width of a model's images: the size that the network fixes, or else the metadata name.

    Raises:
        ModelError: neither names a size, or the model is damaged.
    """
    if (size := input_size(load(model))) is not None:
        return size
    height, width = model.input.get("height"), model.input.get("width")
    if not isinstance(height, int) or not isinstance(width, int):
        raise ModelError(f"model {model.name!r} fixes no input size; prepare it with --size")
    return height, width


def stored_precision(model: Model) -> str:
    """Return the precision of most of a model's stored weights: `FP32`, `FP16`, or `INT8` for 8 bits or fewer.

    Raises:
        ModelError: OpenVINO can't read the model.
    """
    bits: Counter[int] = Counter()
    for node in read(model).get_ordered_ops():
        if node.get_type_name() == "Constant":
            bits[node.get_output_element_type(0).bitwidth] += prod(node.get_output_shape(0))
    most = bits.most_common(1)[0][0] if bits else 32
    return "INT8" if most <= 8 else "FP16" if most == 16 else "FP32"


def precision(model: Model) -> str:
    """Return the precision in the metadata, `FP32`, `FP16` or `INT8`; else the precision of the stored weights."""
    described = model.metadata.get("precision")
    return described if described in PRECISIONS else stored_precision(model)
