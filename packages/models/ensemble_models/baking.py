"""Changes networks: gives a classifier the ensemble's signature, with preprocessing or a temperature inside."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
import openvino as ov
from openvino import opset13
from openvino.preprocess import ColorFormat, PrePostProcessor

from deployments.repository.errors import ModelError
from deployments.repository.heads import Head, set_answer, with_head, with_two_classes
from deployments.repository.layout import Layout, layout_of
from deployments.repository.network import drop_output_quantization, squeeze_scores
from ensemble_models.statistics import SMALLEST

Color = Literal["RGB", "BGR"]

# The name of the operation that takes the probabilities which a temperature changes.
TEMPERATURE = "temperature"


def bake(
    network: ov.Model,
    *,
    size: tuple[int, int],
    mean: Sequence[float],
    scale: Sequence[float],
    channel_order: Color,
    layout: Layout,
    pixels: ov.Type = ov.Type.u8,
    head: Head | None = "logits",
) -> ov.Model:
    """Give a classifier the ensemble's signature, with its preprocessing inside.

    Args:
        network: a model with one image input of four dimensions and one output [N,classes]; it is changed in place.
        size: height and width of the pixels that it shall take.
        mean: subtracted from pixels from 0 to 255, by channel in the model's own order.
        scale: divided by after that, by channel: the standard deviation. ImageNet's values from 0 to 1 times 255.
        channel_order: the order of the model's own channels.
        layout: the model's own layout.
        pixels: the type of the pixels that it shall take.
        head: the head of its scores, which become a distribution; None keeps them as they are.

    Returns:
        A model with the input `image`, BGR [N,height,width,3], and the output `probabilities`, float32
        [N,classes], rows that sum to 1. N is free unless the model fixes it.

    Raises:
        ModelError: the model has other inputs or outputs, or does not run at that size.
    """
    check_ends(network)
    layout_of(network.input(0).get_partial_shape(), layout)
    _reshape(network, size, layout)
    drop_output_quantization(network)
    squeeze_scores(network)
    if not network.output(0).get_element_type().is_real():
        set_answer(network, opset13.convert(network.get_results()[0].input_value(0), "f32").output(0))
    if head is not None:
        if network.output(0).get_partial_shape()[1] == 1:
            with_two_classes(network, head)
        else:
            with_head(network, head)
    # TFLite's int8 are bytes less 128.
    shift = 128 if network.input(0).get_element_type() == ov.Type.i8 else 0
    adapter = PrePostProcessor(network)
    image = adapter.input()
    image.tensor().set_element_type(pixels).set_layout(ov.Layout("NHWC")).set_color_format(ColorFormat.BGR)
    image.model().set_layout(ov.Layout(layout))
    steps = image.preprocess().convert_element_type(ov.Type.f32)
    # Colour first: mean and scale are in the model's own order of channels.
    if channel_order == "RGB":
        steps.convert_color(ColorFormat.RGB)
    if any(mean):
        steps.mean(list(mean))
    if any(value != 1 for value in scale):
        steps.scale(list(scale))
    if shift:
        steps.mean(shift)
    adapter.output().tensor().set_element_type(ov.Type.f32)
    baked = adapter.build()
    baked.input(0).get_tensor().set_names({"image"})
    baked.output(0).get_tensor().set_names({"probabilities"})
    return baked


def only_output(network: ov.Model, name: str | None) -> ov.Model:
    """Keep one output of a model, the given one.

    Raises:
        ModelError: there is no such output, or there are several and none is given; the message proposes outputs
            that may be scores.
    """
    if name is None and len(network.outputs) == 1:
        return network
    by_name = {min(output.names, default=str(position)): output for position, output in enumerate(network.outputs)}
    for output in network.outputs:
        if name in output.names:
            by_name[str(name)] = output
    if name in by_name:
        return ov.Model([by_name[name].get_node().input_value(0)], network.get_parameters())
    shapes = {each: output.get_partial_shape() for each, output in by_name.items()}
    shown = "; ".join(f"{each} {shape}" for each, shape in shapes.items())
    scores = [
        each
        for each, shape in shapes.items()
        if shape.rank.is_dynamic or (len(shape) >= 2 and all(extent == 1 for extent in list(shape)[2:]))
    ]
    proposed = f": {' or '.join(f'--output {each}' for each in scores)} may be the scores" if scores else ""
    raise ModelError(f"the model has the outputs {shown}; name the one with the class scores by --output{proposed}")


def check_ends(network: ov.Model) -> None:
    """Raise ModelError unless a model has one input and one output, both of numbers."""
    if len(network.inputs) != 1 or len(network.outputs) != 1:
        raise ModelError(
            f"the model has {len(network.inputs)} inputs and {len(network.outputs)} outputs; a member has one image "
            "input and one output of class scores: export it for inference, without auxiliary heads"
        )
    if ov.Type.string in {network.input(0).get_element_type(), network.output(0).get_element_type()}:
        raise ModelError(
            "the model takes or answers texts, as encoded images or names of classes. A member takes pixels, and "
            "answers scores: export the model without these operations, or name another output by --output"
        )


def static_size(network: ov.Model, layout: Layout) -> tuple[int, int] | None:
    """Return height and width of the pixels that a model takes; None if they are free."""
    shape = network.input(0).get_partial_shape()
    if shape.rank.is_dynamic or shape.rank.get_length() != 4:
        return None
    height, width = (shape[layout.index(axis)] for axis in "HW")
    return None if height.is_dynamic or width.is_dynamic else (height.get_length(), width.get_length())


def _reshape(network: ov.Model, size: tuple[int, int], layout: Layout) -> None:
    """Set the image size and free N; a model that fixes N keeps its own."""
    own = network.input(0).get_partial_shape()
    extent = {"N": -1, "C": 3, "H": size[0], "W": size[1]}
    _, *image = (extent[axis] for axis in layout)
    rows = 1 if own.rank.is_dynamic or own[0].is_dynamic else own[0].get_length()
    # With a free N, a reshape to [-1, ...] in the model would hide a wrong size and a fixed N: try one more first.
    try:
        network.reshape([rows + 1, *image])
        if _answers(network, rows + 1):
            network.reshape([-1, *image])
            return
    except RuntimeError:
        pass
    try:
        network.reshape([rows, *image])
    except RuntimeError as err:
        raise ModelError(
            f"the model takes {own}, which can't become {[rows, *image]} ({layout}); check --size and --layout"
        ) from err
    if not _answers(network, rows):
        raise ModelError(
            f"the model answers {network.output(0).get_partial_shape()} to {rows} images; a member answers "
            "[N, classes]: export a classifier with its pooling and its last layer"
        )


def _answers(network: ov.Model, rows: int) -> bool:
    """Return whether the output is [rows,classes], perhaps followed by ones."""
    answer = network.output(0).get_partial_shape()
    if not answer.is_static or len(answer) < 1 or any(extent != 1 for extent in list(answer)[2:]):
        return False
    return bool(answer[0].get_length() == rows)


def with_temperature(network: ov.Model, temperature: float) -> ov.Model:
    """Change a model's probabilities p to softmax(log(p) / temperature), which keeps their order.

    Of a model that ends in a softmax these are the softmax of its logits, divided by the temperature.
    """
    answer = opset13.convert(network.get_results()[0].input_value(0), "f32").output(0)
    probabilities = opset13.maximum(answer, np.float32(SMALLEST), name=TEMPERATURE)
    logits = opset13.multiply(opset13.log(probabilities), np.float32(1 / temperature))
    set_answer(network, opset13.softmax(logits, axis=1).output(0))
    return network


def without_temperature(network: ov.Model) -> ov.Model:
    """Remove the operations that `with_temperature` added to a model, if any."""
    node = network.get_results()[0].input_value(0).get_node()
    for kind in ("Softmax", "Multiply", "Log", "Maximum"):
        if node.get_type_name() != kind:
            return network
        added, node = node, node.input_value(0).get_node()
    if added.get_friendly_name() == TEMPERATURE:
        set_answer(network, added.input_value(0))
    return network
