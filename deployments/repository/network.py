"""Reads a model of the repository by OpenVINO, as a network with the ensemble's signature, and describes it."""

import numpy as np
import openvino as ov
from openvino import opset13
from openvino.preprocess import PrePostProcessor

from deployments.repository.content import no_model
from deployments.repository.errors import ModelError, reason
from deployments.repository.heads import one_output, set_answer, with_two_classes
from deployments.repository.layout import layout_of
from deployments.repository.repository import Model


def load(model: Model) -> ov.Model:
    """Read a model and give it the ensemble's signature: uint8 BGR [N,H,W,C] in, float32 [N,classes] out, N free.

    A model that `ensemble prepare` wrote has it already. Of others the layout and the type are converted; nothing is
    normalized.

    Raises:
        ModelError: the files are damaged, or the model is no image classifier.
    """
    model.verify()
    network = read(model)
    try:
        return _classifier(network)
    except ModelError as err:
        raise ModelError(f"model {model.name!r}: {err}; prepare it by `ensemble prepare`") from err


def _classifier(network: ov.Model) -> ov.Model:
    if len(network.inputs) != 1 or len(network.outputs) != 1:
        raise ModelError(
            f"it has {len(network.inputs)} inputs and {len(network.outputs)} outputs; "
            "a member has one image input and one output of class scores: choose it by `ensemble prepare --output`"
        )
    drop_output_quantization(network)
    layout = layout_of(network.input(0).get_partial_shape())
    if layout == "NCHW" or network.input(0).get_element_type() != ov.Type.u8:
        adapter = PrePostProcessor(network)
        adapter.input().tensor().set_element_type(ov.Type.u8).set_layout(ov.Layout("NHWC"))
        adapter.input().model().set_layout(ov.Layout(layout))
        network = adapter.build()
    fixed = network.input(0).get_partial_shape()
    try:
        network.reshape(ov.PartialShape([-1, *list(fixed)[1:]]))
        keeps_batch = network.output(0).get_partial_shape()[0].is_static
    except RuntimeError:
        keeps_batch = True
    if keeps_batch:
        network.reshape(fixed)
    squeeze_scores(network)
    output = network.output(0).get_partial_shape()
    if output.rank.is_static and len(output) == 2 and output[1] == 1:
        with_two_classes(network, one_output(network))
        output = network.output(0).get_partial_shape()
    if output.rank.is_dynamic or len(output) != 2 or output[1].is_dynamic:
        raise ModelError(f"it answers {output}; a member answers [N, classes]")
    return network


def read(model: Model) -> ov.Model:
    """Read a network without mapping its file: a process that maps a file ends when somebody writes to the file.

    Raises:
        ModelError: OpenVINO can't read it.
    """
    if model.path.is_file() and (what := no_model(model.path)):
        raise ModelError(f"{model.path} is {what}")
    core = ov.Core()
    core.set_property({"ENABLE_MMAP": False})
    try:
        return core.read_model(model.path)
    except RuntimeError as err:
        raise ModelError(f"OpenVINO can't read {model.path}: {reason(err)}") from err


def drop_output_quantization(network: ov.Model) -> None:
    """Remove the quantization behind an int8 model's scores, which rounds them to 8 bits, as integers or not."""
    result = network.get_results()[0]
    scores, last = result.input_value(0), result.input_value(0).get_node()
    while last.get_type_name() in {"FakeQuantize", "Convert"}:
        if last.get_type_name() == "FakeQuantize":
            scores = last.input_value(0)
        last = last.input_value(0).get_node()
    if scores.get_element_type().is_real() and scores != result.input_value(0):
        set_answer(network, scores)


def squeeze_scores(network: ov.Model) -> None:
    """Change an output [N,classes,1,1], as a convolution's, to [N,classes], and [N], as of one class, to [N,1]."""
    result = network.get_results()[0]
    shape = result.get_output_partial_shape(0)
    if shape.rank.is_dynamic:
        return
    if len(shape) == 1:
        set_answer(network, opset13.unsqueeze(result.input_value(0), np.array([1])).output(0))
    elif len(shape) > 2 and all(extent == 1 for extent in list(shape)[2:]):
        set_answer(network, opset13.squeeze(result.input_value(0), np.arange(2, len(shape))).output(0))


def input_size(network: ov.Model) -> tuple[int, int] | None:
    """Return height and width that a loaded model takes; None if it takes any."""
    _, height, width, _ = network.input(0).get_partial_shape()
    return None if height.is_dynamic or width.is_dynamic else (height.get_length(), width.get_length())


def class_count(network: ov.Model) -> int:
    """Return the number of classes of a loaded model."""
    return int(network.output(0).get_partial_shape()[1].get_length())
