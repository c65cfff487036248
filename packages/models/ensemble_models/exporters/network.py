"""What a network itself shows of how it takes images: its first operations and the type of its input."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import openvino as ov

from ensemble_models.exporters.facts import WHITE, Description, Fact, scaling

# Between the input and the first filter: what moves pixels, and what changes their levels.
MOVING = frozenset(
    {"Convert", "Transpose", "Reshape", "Squeeze", "Unsqueeze", "StridedSlice", "Slice", "Gather", "Split",
     "VariadicSplit", "Concat"}
)  # fmt: skip
CHANGING = frozenset({"Multiply", "Divide", "Add", "Subtract"})
MOST_OPERATIONS = 16
# Levels that filters take are small; only caffe's are not, which reach from -124 to 152.
SMALL, CAFFE = 6.0, (-130.0, 160.0)
# A network that takes pixels from 0 to 1 and normalizes them stretches them at least so much.
STRETCH = 1.9


def first_operations(network: ov.Model) -> Iterator[Fact]:
    """State the levels of pixels that a network takes, if it normalizes them by itself."""
    if len(network.inputs) != 1:
        return
    scale, shift, count = 1.0, 0.0, 0
    output = network.input(0)
    for _ in range(MOST_OPERATIONS):
        node = next((target.get_node() for target in output.get_target_inputs()), None)
        kind = "" if node is None else node.get_type_name()
        if node is None or kind not in MOVING | CHANGING:
            break
        if kind in CHANGING:
            if (constant := _constant(node)) is None:
                break
            scale, shift, count = *_changed(kind, scale, shift, constant), count + 1
        output = node.output(0)
    low, white, one = shift, WHITE * scale + shift, scale + shift
    where = f"the model's first operations: pixels * {scale:.4g} {shift:+.4g}"
    if takes_bytes(network):
        yield from scaling(1.0, (0.0,) * 3, (1.0,) * 3, "the type of the model's input, 8 bits")
    elif count and ((-SMALL <= low <= 0 < white <= SMALL) or (scale == 1 and CAFFE[0] < low < 0 < white < CAFFE[1])):
        yield from scaling(1.0, (0.0,) * 3, (1.0,) * 3, where)
    elif count and scale >= STRETCH and -SMALL <= low < 0 < one <= SMALL:
        yield from scaling(1 / WHITE, (0.0,) * 3, (1.0,) * 3, where)


def takes_bytes(network: ov.Model) -> bool:
    """Check whether a network takes pixels as whole numbers of 8 bits, so that it normalizes by itself."""
    return network.input(0).get_element_type() in {ov.Type.u8, ov.Type.i8}


def properties(network: ov.Model, where: str) -> Description:
    """Collect what exporters store in a network: an ONNX file's properties, or an IR's `rt_info`."""
    info = {name: _plain(value) for name, value in network.get_rt_info().items()}
    fields = dict(info.get("framework") or {}) if isinstance(info.get("framework"), dict) else {}
    # Model API writes into ONNX `model_info labels`, and into an IR `labels` below `model_info`.
    named = {key.partition(" ")[2]: value for key, value in fields.items() if key.startswith("model_info ")}
    if model_info := named or info.get("model_info"):
        fields["model_info"] = model_info
    return Description(where, fields)


def _constant(node: Any) -> float | None:
    """Return the mean of a node's constant operand, if it has one."""
    for operand in node.input_values():
        inner = operand.get_node()
        if inner.get_type_name() == "Convert":
            inner = inner.input_value(0).get_node()
        if inner.get_type_name() == "Constant":
            return float(np.mean(inner.get_data()))
    return None


def _changed(kind: str, scale: float, shift: float, constant: float) -> tuple[float, float]:
    """Apply an operation to `pixels * scale + shift`."""
    if kind in {"Multiply", "Divide"}:
        factor = constant if kind == "Multiply" else 1 / constant if constant else 0.0
        return scale * factor, shift * factor
    return scale, shift + (constant if kind == "Add" else -constant)


def _plain(value: Any) -> Any:
    value = getattr(value, "value", value)
    return {name: _plain(each) for name, each in value.items()} if isinstance(value, dict) else value
