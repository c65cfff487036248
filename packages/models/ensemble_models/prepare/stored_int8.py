"""Int8 networks from published weights, without NNCF and without images: by ranges that were measured once.

NNCF's `performance` preset was run on photographs (`lab/training/ranges.py`). Only the range of each
quantized activation is stored, and a digest of the network. The int8 weights follow from the weights.
"""

import hashlib
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import msgspec
import numpy as np
import openvino as ov
from openvino import opset13 as ops

from deployments.repository.errors import ModelError
from ensemble_models.int8 import LAYERS

FILE = "ranges.json"
# Levels of an activation, and the largest of a weight, whose levels are symmetric.
LEVELS, LARGEST = 256, 127


class Stored(msgspec.Struct):
    """The stored measurements of a quantized network.

    Attributes:
        in_float: how many layers at the start stay float.
        ranges: the least and the largest value of each quantized activation, in the order in which it is read.
        accuracy: of the network that was built so, measured on images that chose no range.
        sha256: the digest of the int8 weights, their scales and the ranges; see `digest`.
    """

    in_float: int
    ranges: list[tuple[float, float]]
    accuracy: dict[str, Any]
    sha256: str


def stored(name: str) -> Stored | None:
    """Return the stored measurements of a published network; None if there are none."""
    content = (files(__package__) / FILE).read_bytes()
    return msgspec.json.decode(content, type=dict[str, Stored]).get(name)


def build(network: ov.Model, measured: Stored) -> ov.Model:
    """Quantize a float network, in place, and return it.

    Raises:
        ModelError: it is not the measured network, or the int8 weights differ.
    """
    readers = list(_read_activations(network, measured.in_float))
    sources = list(dict.fromkeys(reader.get_source_output() for reader in readers))
    if len(sources) != len(measured.ranges):
        raise ModelError(f"{len(sources)} activations are to be quantized; {len(measured.ranges)} were measured")
    content = hashlib.sha256(np.array(measured.ranges, np.float32).tobytes())
    for layer in _layers(network)[measured.in_float :]:
        _quantize_weights(layer, content)
    for source, (low, high) in zip(sources, measured.ranges, strict=True):
        bounds = np.float32(low), np.float32(high)
        quantized = ops.fake_quantize(source, *bounds, *bounds, LEVELS).output(0)
        for reader in readers:
            if reader.get_source_output() == source:
                reader.replace_source_output(quantized)
    network.validate_nodes_and_infer_types()
    if content.hexdigest() != measured.sha256:
        raise ModelError(f"the int8 weights have the SHA-256 {content.hexdigest()}, not {measured.sha256}")
    return network


def _layers(network: ov.Model) -> list[ov.Node]:
    return [node for node in network.get_ordered_ops() if node.get_type_name() in LAYERS]


def _read_activations(network: ov.Model, in_float: int) -> Iterator[ov.Input]:
    """List the inputs that get quantized activations: of the quantized layers, and of sums of two activations."""
    names = {layer.get_friendly_name() for layer in _layers(network)[in_float:]}
    for node in network.get_ordered_ops():
        if node.get_friendly_name() in names:
            yield node.input(0)
        elif node.get_type_name() == "Add" and not any(_is_constant(node.input_value(port)) for port in (0, 1)):
            yield from (node.input(0), node.input(1))


def _is_constant(value: ov.Output) -> bool:
    node = value.get_node()
    if node.get_type_name() == "Convert":
        node = node.input_value(0).get_node()
    return bool(node.get_type_name() == "Constant")


def _quantize_weights(layer: ov.Node, content: Any) -> None:
    """Replace a layer's weights by int8 ones and a scale for each output channel, and add both to the digest."""
    constant = layer.input_value(1).get_node()
    if constant.get_type_name() == "Convert":
        constant = constant.input_value(0).get_node()
    weights = constant.data.astype(np.float32)
    # [groups, outputs, inputs, ...] or [outputs, inputs, ...]
    first = 2 if layer.get_type_name() == "GroupConvolution" else 1
    largest = np.abs(weights).max(axis=tuple(range(first, weights.ndim)), keepdims=True)
    scale = (np.maximum(largest, np.finfo(np.float32).tiny) / np.float32(LARGEST)).astype(np.float32)
    levels = np.clip(np.rint(weights / scale), -LARGEST, LARGEST).astype(np.int8)
    content.update(levels.tobytes())
    content.update(scale.tobytes())
    quantized = ops.multiply(ops.convert(ops.constant(levels), np.float32), ops.constant(scale))
    layer.input(1).replace_source_output(quantized.output(0))
