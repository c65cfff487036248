"""Small models that tests write into a repository of their own."""

import numpy as np
import openvino as ov
from openvino import opset13 as op

from ensemble_models.writing import write_metadata

CLASSES = tuple(f"level{index}" for index in range(8))


def _parameter(size):
    return op.parameter([-1, size, size, 3], np.uint8, name="image")


def constant(probabilities, size=32):
    """A model that answers the same probabilities whatever it sees."""
    image = _parameter(size)
    mean = op.reduce_mean(op.convert(image, "f32"), np.array([1, 2, 3]), keep_dims=False)
    zeros = op.multiply(op.unsqueeze(mean, np.array(1)), np.zeros((1, len(probabilities)), np.float32))
    return ov.Model([op.add(zeros, np.array([probabilities], np.float32))], [image], "constant")


def brightness(classes=len(CLASSES), size=32):
    """A model whose logits favour the class of the picture's mean brightness, `classes` equal steps from 0 to 255."""
    image = _parameter(size)
    mean = op.reduce_mean(op.convert(image, "f32"), np.array([1, 2, 3]), keep_dims=False)
    centres = ((np.arange(classes) + 0.5) * 256 / classes).astype(np.float32)[None]
    distance = op.abs(op.subtract(op.unsqueeze(mean, np.array(1)), centres))
    return ov.Model([op.multiply(distance, np.float32(-0.5))], [image], "brightness")


def store(repository, name, network, version=1, classes=CLASSES, **metadata):
    """Save a model with its metadata; returns the version's folder."""
    folder = repository / name / str(version)
    folder.mkdir(parents=True)
    ov.save_model(network, folder / "model.xml", compress_to_fp16=False)
    write_metadata(folder, {"name": name, "version": version, "classes": list(classes), **metadata})
    return folder


def one_hot(index, peak=0.8, classes=len(CLASSES)):
    """A distribution with `peak` on one class."""
    rest = (1 - peak) / (classes - 1)
    return [peak if i == index else rest for i in range(classes)]


def heavy(layers=12, size=32, classes=len(CLASSES)):
    """A model that takes milliseconds an image: 9.4 million multiplications a layer."""
    pixels = size * size * 3
    weights = np.random.default_rng(0).standard_normal((pixels, pixels)).astype(np.float32) / pixels
    image = _parameter(size)
    flat = op.reshape(op.convert(image, "f32"), np.array([-1, pixels]), False)
    for _ in range(layers):
        flat = op.matmul(flat, weights, False, False)
    return ov.Model([op.softmax(op.matmul(flat, weights[:, :classes], False, False), 1)], [image], "heavy")


def fails_from(level):
    """A model that OpenVINO can't execute on a picture of this mean brightness, or of more."""
    image = _parameter(32)
    mean = op.reduce_mean(op.convert(image, "f32"), np.array([1, 2, 3]), keep_dims=False)
    logits = op.multiply(op.unsqueeze(mean, np.array(1)), np.array([[1, 2, 3]], np.float32))
    # More than the three scores that are there.
    count = op.multiply(op.convert(op.greater_equal(mean, np.float32(level)), "i32"), np.int32(4))
    return ov.Model([op.reverse_sequence(logits, count, 0, 1)], [image], "fails")
