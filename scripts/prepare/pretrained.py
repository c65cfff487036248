"""A torchvision model by its name, with official or with random weights, as an OpenVINO network."""

from __future__ import annotations

import os
import pickle
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal
from urllib.parse import urlparse

import openvino as ov

from models.errors import ModelError
from models.layout import Layout
from models.repository import sha256
from scripts.prepare.normalization import Normalization

Weights = Literal["default", "random"]

IMAGENET_SIZE = (224, 224)
IMAGENET_CROP_RATIO = 0.875
SEED = 0


@dataclass(frozen=True)
class Pretrained:
    """A network, and what is known about its input.

    Attributes:
        network: one image input, one output of class scores.
        origin: how it was made, for `metadata.json`.
        labels: the class names, if the weights come with any.
        size: height and width, pixels; None where only the network says.
        crop_ratio: share of the shorter side that the evaluation crop keeps.
        normalization: what the weights were trained with; None where it is not known.
        layout: of the input; None where only its shape says.
    """

    network: ov.Model
    origin: dict[str, Any]
    labels: tuple[str, ...] | None = None
    size: tuple[int, int] | None = None
    crop_ratio: float = IMAGENET_CROP_RATIO
    normalization: Normalization | None = None
    layout: Layout | None = None


def get(name: str, weights: Weights) -> Pretrained:
    """Make a torchvision model.

    Args:
        name: `resnet50`, `densenet169`; with `default` weights any of torchvision's classifiers.
        weights: `default` for torchvision's official ones, their SHA-256 compared with the 8 digits in the file name;
            `random` for none, which takes neither torchvision nor a network.

    Raises:
        ModelError: PyTorch or torchvision is missing, there is no such model, or its weights can't be had.
    """
    try:
        import torch
    except ImportError as err:
        raise ModelError("torchvision models need PyTorch: pip install -e '.[train]'") from err
    if weights == "default":
        return _official(name)
    from scripts.prepare.imagenet import ARCHITECTURES, random_model

    if name not in ARCHITECTURES:
        raise ModelError(f"no model {name!r} with random weights; there are {', '.join(sorted(ARCHITECTURES))}")
    network = ov.convert_model(random_model(name, SEED), example_input=torch.zeros(2, 3, *IMAGENET_SIZE))
    origin = {"model": name, "weights": "random", "seed": SEED, "torch": torch.__version__}
    normalization = Normalization.usual("RGB", "imagenet")
    return Pretrained(network, origin, size=IMAGENET_SIZE, normalization=normalization, layout="NCHW")


def _official(name: str) -> Pretrained:
    try:
        import torch
        import torchvision
    # RuntimeError is what a torchvision built for another PyTorch raises.
    except (ImportError, RuntimeError) as err:
        raise ModelError(
            f"--weights default needs a torchvision that fits the installed PyTorch ({err}); install the "
            "pair that PyTorch's site names, or pass --weights random"
        ) from err
    models = torchvision.models
    known = models.list_models(module=models)
    if name not in known:
        raise ModelError(f"no model {name!r} in torchvision; it has {', '.join(known)}")
    weights = models.get_model_weights(name).DEFAULT
    digest = _download(weights.url)
    # torchvision's builder knows the names of old weights, but unpickles what it reads unless PyTorch is told not to.
    os.environ["TORCH_FORCE_WEIGHTS_ONLY_LOAD"] = "1"
    try:
        model = models.get_model(name, weights=weights)
    except (pickle.UnpicklingError, RuntimeError) as err:
        raise ModelError(f"the weights {weights.url} don't fit this torchvision: {err}") from err
    recipe = weights.transforms()
    (crop,), (resize,) = recipe.crop_size, recipe.resize_size
    origin = {
        "model": name,
        "weights": str(weights),
        "url": weights.url,
        "sha256": digest,
        "torchvision": torchvision.__version__,
    }
    return Pretrained(
        ov.convert_model(model.eval(), example_input=torch.zeros(2, 3, crop, crop)),
        origin,
        tuple(weights.meta["categories"]),
        (crop, crop),
        crop / resize,
        Normalization("RGB", tuple(recipe.mean), tuple(recipe.std)),
        "NCHW",
    )


def _download(url: str) -> str:
    """Put a file where torchvision looks for it, unless it is there; returns its SHA-256.

    Raises:
        ModelError: it can't be had, or doesn't begin with the digits in its name.
    """
    import torch

    name = PurePosixPath(urlparse(url).path).name
    file = Path(torch.hub.get_dir()) / "checkpoints" / name
    try:
        if not file.is_file():
            file.parent.mkdir(parents=True, exist_ok=True)
            torch.hub.download_url_to_file(url, str(file))
        digest = sha256(file)
    except OSError as err:
        raise ModelError(f"can't get the weights {url}: {err}; --weights random needs no network") from err
    told = re.search(r"-([0-9a-f]{8,})\.", name)
    if told is None or not digest.startswith(told[1]):
        raise ModelError(f"{file} is damaged: its SHA-256 {digest} doesn't begin as its name says; delete it")
    return digest
