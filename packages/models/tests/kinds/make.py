"""Makes classifiers as strangers train them, and folders of images that show how they take these.

A classifier tells an image by its mean colour: its scores are the distances to the colours of the classes, in the space
of its own normalization, so that only its own normalization, colour order and resizing make it right.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from pathlib import Path, PurePosixPath

import numpy as np
import onnx
import openvino as ov
from numpy.typing import NDArray
from openvino import opset13 as ops
from PIL import Image

from ensemble_models.prepare.source import Normalization

SIZE = (8, 12)
# Red, green and blue.
COLOURS = {
    "coal": (20, 20, 25), "lake": (30, 90, 200), "meadow": (60, 160, 50), "poppy": (210, 40, 40),
    "sand": (220, 190, 120), "slate": (100, 105, 110), "snow": (245, 245, 250),
}  # fmt: skip
TWO = {"moss": (120, 130, 90), "plum": (150, 110, 120)}
# How much surer than the distances of normalized colours.
SURE = 4.0

Head = Callable[[ov.Node], ov.Node | ov.Output]


def spread(names: Sequence[str]) -> dict[str, tuple[int, int, int]]:
    """Give classes colours that are far from each other."""
    levels = [(r, g, b) for r in (20, 128, 235) for g in (20, 128, 235) for b in (20, 128, 235)]
    return dict(zip(names, levels[::2], strict=False))


def logits(scores: ov.Node) -> ov.Node:
    return scores


def softmax(scores: ov.Node) -> ov.Node:
    return ops.softmax(scores, 1)


def sigmoid(scores: ov.Node) -> ov.Node:
    """A head for each class by itself: positive within half of the distance between colours."""
    return ops.sigmoid(ops.add(scores, np.float32(3)))


def sigmoid_by_hand(scores: ov.Node) -> ov.Node:
    raised = ops.exp(ops.subtract(np.float32(-3), scores))
    return ops.divide(np.float32(1), ops.add(raised, np.float32(1)))


def percent(scores: ov.Node) -> ov.Node:
    return ops.multiply(softmax(scores), np.float32(100))


def levels(scores: ov.Node) -> ov.Node:
    return ops.convert(ops.multiply(softmax(scores), np.float32(255)), "u8")


def relu(scores: ov.Node) -> ov.Node:
    return ops.relu(ops.add(scores, np.float32(5)))


def pooled(scores: ov.Node) -> ov.Node:
    return ops.unsqueeze(scores, np.array([2, 3]))


def argmax(scores: ov.Node) -> ov.Node:
    return ops.squeeze(ops.topk(scores, np.int64(1), 1, "max", "index").output(1), np.array([1]))


def by_batch(scores: ov.Node) -> ov.Node:
    """Batch normalization with the mean and deviation of the batch, as in training."""
    mean = ops.reduce_mean(scores, np.array([0]), True)
    variance = ops.reduce_mean(ops.squared_difference(scores, mean), np.array([0]), True)
    return ops.divide(ops.subtract(scores, mean), ops.sqrt(ops.add(variance, np.float32(1e-3))))


def dropout(scores: ov.Node) -> ov.Node:
    """Dropout that stays after training."""
    drawn = ops.random_uniform(ops.shape_of(scores), np.float32(0), np.float32(1), "f32", 0, 0)
    return ops.multiply(scores, ops.convert(ops.greater(drawn, np.float32(0.3)), "f32"))


def cosines(colours: Mapping[str, tuple[int, int, int]]) -> ov.Model:
    """Make a classifier whose scores are the cosines of colours, less grey, in the order RGB."""
    apart = (np.array(list(colours.values())) / 255 - 0.5).astype(np.float32)
    image = ops.parameter([-1, 3, *SIZE], ov.Type.f32)
    mean = ops.normalize_l2(ops.reduce_mean(image, np.array([2, 3]), False), np.array([1]), 1e-9, "add")
    return ov.Model([ops.matmul(mean, apart / np.linalg.norm(apart, axis=1, keepdims=True), False, True)], [image])


def names_onnx(file: Path, colours: Mapping[str, tuple[int, int, int]]) -> None:
    """Write a classifier that answers the name of a class."""
    linear_onnx(file, colours, Normalization.usual("RGB", "unit"))
    model = onnx.load(file)
    names = onnx.helper.make_tensor(
        "names", onnx.TensorProto.STRING, [len(colours)], [each.encode() for each in colours]
    )
    model.graph.initializer.append(names)
    model.graph.node.append(onnx.helper.make_node("ArgMax", ["output"], ["index"], axis=1, keepdims=0))
    model.graph.node.append(onnx.helper.make_node("Gather", ["names", "index"], ["name"]))
    del model.graph.output[:]
    model.graph.output.append(onnx.helper.make_tensor_value_info("name", onnx.TensorProto.STRING, ["N"]))
    onnx.save(model, file)


def second_of_two(last: Callable[[ov.Node], ov.Node], flat: bool = False) -> Head:
    """A head of one output: how much likelier the second class is."""

    def head(scores: ov.Node) -> ov.Node:
        apart = ops.matmul(scores, np.array([[-1], [1]], np.float32), False, False)
        answer = last(apart)
        return ops.squeeze(answer, np.array([1])) if flat else answer

    return head


def classifier(
    colours: Mapping[str, tuple[int, int, int]] = COLOURS,
    way: Normalization = Normalization.usual("RGB", "unit"),
    layout: str = "NCHW",
    head: Head = logits,
    rows: int = -1,
    size: tuple[int, int] = SIZE,
    channels: int = 3,
    element: ov.Type = ov.Type.f32,
    seen: Callable[[NDArray[np.float64]], NDArray[np.float64]] = lambda colours: colours,
) -> ov.Model:
    """Make a classifier of the classes in the order of `colours`; `seen` is the mean colour as resizing changes it."""
    colour = seen(np.array(list(colours.values()), np.float64))[:, :: 1 if way.order == "RGB" else -1] / 255
    wanted = ((colour - way.mean) / way.std).astype(np.float32)
    shape, axes = ([rows, channels, *size], [2, 3]) if layout == "NCHW" else ([rows, *size, channels], [1, 2])
    image = ops.parameter(shape, element)
    mean = ops.unsqueeze(ops.reduce_mean(ops.convert(image, "f32"), np.array(axes), False), np.array([1]))
    apart = ops.reduce_sum(ops.squared_difference(mean, wanted[None]), np.array([2]), False)
    scores = ops.multiply(apart, np.float32(-SURE * np.mean(way.std) ** 2 / 0.05))
    return ov.Model([head(scores)], [image])


def linear_onnx(file: Path, colours: Mapping[str, tuple[int, int, int]], way: Normalization) -> None:
    """Write the same classifier as PyTorch exports one: NCHW, pooled, one linear layer."""
    wanted = ((np.array(list(colours.values())) / 255 - way.mean) / way.std).astype(np.float32)
    scale = np.float32(SURE * np.mean(way.std) ** 2 / 0.05)
    values = {"weight": 2 * scale * wanted.T, "bias": -scale * (wanted**2).sum(1)}
    node, float32 = onnx.helper.make_node, onnx.TensorProto.FLOAT
    graph = onnx.helper.make_graph(
        [
            node("GlobalAveragePool", ["input"], ["pool"]), node("Flatten", ["pool"], ["flat"]),
            node("Gemm", ["flat", "weight", "bias"], ["output"]),
        ],
        "linear",
        [onnx.helper.make_tensor_value_info("input", float32, ["N", 3, *SIZE])],
        [onnx.helper.make_tensor_value_info("output", float32, ["N", len(colours)])],
        [onnx.numpy_helper.from_array(value, name) for name, value in values.items()],
    )  # fmt: skip
    opset = onnx.helper.make_opsetid("", 17)
    onnx.save(onnx.helper.make_model(graph, opset_imports=[opset], ir_version=9), file)


def pictures(colours: Mapping[str, tuple[int, int, int]], count: int = 14) -> dict[str, list[Image.Image]]:
    """Draw noisy pictures of each class' colour, of the classifiers' size."""
    noise, found = np.random.default_rng(0), {}
    for name, colour in colours.items():
        shades = np.array(colour) + noise.normal(0, 6, (count, 1, 1, 3)) + noise.normal(0, 20, (count, *SIZE, 3))
        found[name] = [Image.fromarray(shade) for shade in shades.clip(0, 255).astype(np.uint8)]
    return found


def wide(colours: Mapping[str, tuple[int, int, int]], count: int = 20) -> dict[str, list[Image.Image]]:
    """Draw pictures that are twice as wide as high: the class' colour on the left, grey elsewhere."""
    found = {}
    for name, drawn in pictures(colours, count).items():
        found[name] = [Image.new("RGB", (48, 24), (128, 128, 128)) for _ in drawn]
        for whole, part in zip(found[name], drawn, strict=True):
            whole.paste(part.resize((20, 24)), (0, 0))
    return found


def write(path: Path, drawn: Mapping[str, Sequence[Image.Image]], suffixes: Sequence[str] = (".png",)) -> Path:
    """Write pictures to `<class>/<number>`, in these formats in turn, into a folder or a zip file."""
    files = {}
    for name, images in drawn.items():
        for number, image in enumerate(images):
            suffix = suffixes[number % len(suffixes)]
            image.save(stream := BytesIO(), Image.registered_extensions()[suffix])
            files[PurePosixPath(name, f"{number}{suffix}")] = stream.getvalue()
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in files.items():
                # As some programs of Windows write it.
                archive.writestr(str(name).replace("/", "\\"), content)
        return path
    for name, content in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(content)
    return path
