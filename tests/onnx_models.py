"""Small ONNX models that tests write: a convolutional classifier with random weights."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

SIZE, CLASSES = 32, tuple(f"class{index}" for index in range(10))
MEAN, SCALE = (125.0, 123.0, 114.0), (63.0, 62.0, 66.0)


def classifier(path, *, prepared=True, batch="N", size=SIZE, seed=0, inputs=1, softmax=True):
    """Write a classifier.

    Args:
        path: where to.
        prepared: whether it takes uint8 [N,H,W,3] BGR and normalizes them itself; else it takes float32 [N,3,H,W] RGB,
            normalized by `MEAN` and `SCALE`, the same weights behind.
        batch: the batch size, or the name of a free one.
        size: height and width; a text for free ones.
        seed: of the weights.
        inputs: how many it has; all but the first are ignored.
        softmax: whether it answers probabilities; else logits.
    """
    random = np.random.default_rng(seed)
    weights, nodes = {}, []

    def node(kind, *sources, **attributes):
        nodes.append(helper.make_node(kind, list(sources), [f"{kind.lower()}{len(nodes)}"], **attributes))
        return nodes[-1].output[0]

    def constant(name, values):
        weights[name] = numpy_helper.from_array(np.asarray(values), name)
        return name

    values = "image"
    if prepared:
        values = node("Transpose", node("Cast", values, to=TensorProto.FLOAT), perm=[0, 3, 1, 2])
        values = node("Gather", values, constant("rgb", np.array([2, 1, 0])), axis=1)
        values = node("Sub", values, constant("mean", np.array(MEAN, np.float32).reshape(1, 3, 1, 1)))
        values = node("Div", values, constant("scale", np.array(SCALE, np.float32).reshape(1, 3, 1, 1)))
    channels = 3
    for width in (16, 32, 64):
        kernel = random.standard_normal((width, channels, 3, 3)) * np.sqrt(2 / (9 * channels))
        values = node(
            "Conv", values, constant(f"kernel{width}", kernel.astype(np.float32)), pads=[1] * 4, strides=[2, 2]
        )
        values, channels = node("Relu", values), width
    values = node("Flatten", node("GlobalAveragePool", values))
    last = (random.standard_normal((channels, len(CLASSES))) * 3).astype(np.float32)
    values = node("MatMul", values, constant("last", last))
    if softmax:
        values = node("Softmax", values, axis=1)
    nodes[-1].output[0] = "scores"
    shape = [batch, size, size, 3] if prepared else [batch, 3, size, size]
    kind = TensorProto.UINT8 if prepared else TensorProto.FLOAT
    graph = helper.make_graph(
        nodes,
        "classifier",
        [helper.make_tensor_value_info("image" if i == 0 else f"other{i}", kind, shape) for i in range(inputs)],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, [batch, len(CLASSES)])],
        list(weights.values()),
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    onnx.checker.check_model(model)
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, path)
    return path
