"""Gives a classifier the ensemble's signature, with its preprocessing inside the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import openvino as ov
from openvino.passes import ConstantFolding, Manager
from openvino.preprocess import ColorFormat, PrePostProcessor

from deployments.repository.errors import ModelError
from deployments.repository.layout import Layout, layout_of
from deployments.repository.network import drop_output_quantization, squeeze_scores, with_softmax

Color = Literal["RGB", "BGR"]

# Operations that do not change values, and so may follow a model's softmax.
TRANSPARENT = frozenset({"Convert", "Reshape", "Squeeze"})


def bake(
    network: ov.Model,
    *,
    size: tuple[int, int],
    mean: Sequence[float],
    scale: Sequence[float],
    channel_order: Color,
    layout: Layout,
    softmax: bool | None = None,
) -> ov.Model:
    """Give a classifier the ensemble's signature, with its preprocessing inside.

    Args:
        network: a model with one image input of four dimensions and one output [N,classes]; it is changed in place.
        size: height and width of the pixels that it shall take.
        mean: subtracted from pixels from 0 to 255, by channel in the model's own order.
        scale: divided by after that, by channel: the standard deviation. ImageNet's values from 0 to 1 times 255.
        channel_order: the order of the model's own channels.
        layout: the model's own layout.
        softmax: whether one is added; None to add it where the model does not end in one.

    Returns:
        A model with the input `image`, uint8 BGR [N,height,width,3], and the output `probabilities`, float32
        [N,classes], rows that sum to 1. N is free unless the model fixes it.

    Raises:
        ModelError: the model has other inputs or outputs, or does not run at that size.
    """
    check_ends(network)
    layout_of(network.input(0).get_partial_shape(), layout)
    _reshape(network, size, layout)
    drop_output_quantization(network)
    squeeze_scores(network)
    if softmax if softmax is not None else not ends_in_softmax(network):
        network = with_softmax(network)
    adapter = PrePostProcessor(network)
    image = adapter.input()
    image.tensor().set_element_type(ov.Type.u8).set_layout(ov.Layout("NHWC")).set_color_format(ColorFormat.BGR)
    image.model().set_layout(ov.Layout(layout))
    steps = image.preprocess().convert_element_type(ov.Type.f32)
    # Colour first: mean and scale are in the model's own order of channels.
    if channel_order == "RGB":
        steps.convert_color(ColorFormat.RGB)
    if any(mean):
        steps.mean(list(mean))
    if any(value != 1 for value in scale):
        steps.scale(list(scale))
    adapter.output().tensor().set_element_type(ov.Type.f32)
    baked = adapter.build()
    baked.input(0).get_tensor().set_names({"image"})
    baked.output(0).get_tensor().set_names({"probabilities"})
    return baked


def check_ends(network: ov.Model) -> None:
    """Raise ModelError unless a model has one input and one output."""
    if len(network.inputs) != 1 or len(network.outputs) != 1:
        raise ModelError(
            f"the model has {len(network.inputs)} inputs and {len(network.outputs)} outputs; a member has one image "
            "input and one output of class scores: export it for inference, without auxiliary heads"
        )


def fold(network: ov.Model) -> None:
    """Fold constants, in place.

    After reshaping, shapes depend on weights (OpenVINO's smart reshape). Unless that is folded before NNCF quantizes,
    the float weights stay beside the int8 ones: 4 MB of ResNet-50's 30.
    """
    folding = Manager()
    folding.register_pass(ConstantFolding())
    folding.run_passes(network)


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
    if not answer.is_static or len(answer) < 2 or any(extent != 1 for extent in list(answer)[2:]):
        return False
    return bool(answer[0].get_length() == rows)


def ends_in_softmax(network: ov.Model) -> bool:
    """Return whether a model ends in a softmax."""
    node = network.get_results()[0].input_value(0).get_node()
    while node.get_type_name() in TRANSPARENT:
        node = node.input_value(0).get_node()
    return str(node.get_type_name()) == "Softmax"
