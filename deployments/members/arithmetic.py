"""How this machine's CPU computes: a model may label an image differently on another generation of CPUs.

Without VNNI, products of eight bits are added up in sixteen, and larger sums are cut off. OpenVINO's properties do not
tell such CPUs apart, so a model of one convolution does: https://github.com/openvinotoolkit/openvino/issues/25342.
"""

from collections.abc import Iterable
from functools import cache

import numpy as np
import openvino as ov
from openvino import opset13 as ops

from deployments.contract.member import MemberConfig
from deployments.members.openvino_config import OpenVinoConfig

# Enough channels for a convolution in int8.
SHAPE = (64, 64, 1, 1)


def arithmetic(members: Iterable[MemberConfig] = ()) -> str:
    """Describe how members compute here: sums of int8 models, and precisions of float ones, such as `exact int8, bf16`.

    A member without `inference_precision` has the CPU's own precision.
    """
    own = ov.Core().get_property("CPU", "INFERENCE_PRECISION_HINT").get_type_name()
    chosen = {each.inference_precision or own for each in members if isinstance(each, OpenVinoConfig)}
    return ", ".join([f"{_sums()} int8", *sorted(chosen or {own})])


@cache
def _sums() -> str:
    """Tell whether sums of products of eight bits are exact or saturating."""
    pixels = ops.parameter([1, *SHAPE[1:]], np.float32)
    products = [_quantized(pixels, 0, 256), _quantized(ops.constant(np.ones(SHAPE, np.float32)), -1, 255)]
    sums = ops.convolution(*products, [1, 1], [0, 0], [0, 0], [1, 1])
    compiled = ov.Core().compile_model(ov.Model([ops.relu(sums)], [pixels]), "CPU", {"INFERENCE_NUM_THREADS": 1})
    [found] = compiled(np.ones((1, *SHAPE[1:]), np.float32)).values()
    return "exact" if np.all(found == SHAPE[1]) else "saturating"


def _quantized(values: ov.Output | ov.Node, low: int, levels: int) -> ov.Node:
    bounds = [np.float32(low), np.float32(1)]
    return ops.fake_quantize(values, *bounds, *bounds, levels)
