"""Models of torchvision and of timm by their names, as OpenVINO networks."""

import importlib
import os
import pickle
import re
from pathlib import Path, PurePosixPath
from typing import Any, Literal
from urllib.parse import urlparse

import openvino as ov

from deployments.entry_points import did_you_mean
from deployments.repository.errors import ModelError
from deployments.repository.repository import sha256
from ensemble_models.exporters import forms
from ensemble_models.exporters.facts import Description, Stated
from ensemble_models.prepare.source import Source, quiet

Weights = Literal["default", "random"]

TIMM = "timm/"
SEED = 0


def get(name: str, weights: Weights) -> Source:
    """Make `resnet50` of torchvision or `timm/resnet50` of timm, with the official weights or random ones.

    Raises:
        ModelError: PyTorch, torchvision or timm is missing, there is no such model, or its weights can't be had.
    """
    try:
        import torch
        import torchvision
    # RuntimeError is what a torchvision built for another PyTorch raises.
    except (ImportError, RuntimeError) as err:
        raise ModelError(
            f"{name} needs PyTorch and a torchvision that fits it: pip install torch torchvision timm ({err})"
        ) from err
    torch.manual_seed(SEED)
    if name.startswith(TIMM):
        return _timm(name.removeprefix(TIMM), weights)
    return _torchvision(torchvision, name, weights)


def _torchvision(torchvision: Any, name: str, weights: Weights) -> Source:
    models = torchvision.models
    known = models.list_models(module=models)
    if name not in known:
        raise ModelError(f"no model {name!r} in torchvision {torchvision.__version__}{did_you_mean(name, known)}")
    official = models.get_model_weights(name).DEFAULT
    origin = {"model": name, "torchvision": torchvision.__version__}
    facts = Stated.of(forms.transforms(str(official.transforms()), f"the transforms of {official}"))
    size = facts.values["size"]
    if weights == "random":
        origin |= {"weights": "random", "seed": SEED}
        return Source(_network(models.get_model(name, weights=None), size), origin, facts)
    origin |= {"weights": str(official), "url": official.url, "sha256": _download(official.url)}
    # torchvision's builder knows the names of old weights, but unpickles what it reads unless PyTorch refuses to.
    os.environ["TORCH_FORCE_WEIGHTS_ONLY_LOAD"] = "1"
    try:
        network = _network(models.get_model(name, weights=official), size)
    except (pickle.UnpicklingError, RuntimeError) as err:
        raise ModelError(f"the weights {official.url} don't fit this torchvision: {err}") from err
    facts.values["labels"] = tuple(official.meta["categories"])
    return Source(network, origin, facts)


def _timm(name: str, weights: Weights) -> Source:
    try:
        timm: Any = importlib.import_module("timm")
        from torchvision.models import ResNet50_Weights
    except ImportError as err:
        raise ModelError(f"{TIMM}{name} needs timm: pip install timm") from err
    if not timm.is_model(name):
        raise ModelError(f"no model {name!r} in timm {timm.__version__}{did_you_mean(name, timm.list_models())}")
    file = _from_hub(timm.get_pretrained_cfg(name).hf_hub_id) if weights == "default" else None
    model = timm.create_model(name, checkpoint_path=str(file or ""))
    recipe = {"pretrained_cfg": timm.data.resolve_data_config(model=model)}
    facts = Stated.of(forms.timm(Description(f"{TIMM}{name}", recipe)))
    origin = {"model": f"{TIMM}{name}", "timm": timm.__version__, "weights": weights}
    origin |= {"seed": SEED} if file is None else {"sha256": sha256(file)}
    if file is not None and timm.data.infer_imagenet_subset(model) == "imagenet-1k":
        # The names of torchvision's models, so that both may be in one ensemble.
        facts.values["labels"] = tuple(ResNet50_Weights.DEFAULT.meta["categories"])
    return Source(_network(model, facts.values["size"]), origin, facts)


def _network(model: Any, size: tuple[int, int]) -> ov.Model:
    import torch

    # PyTorch's fast path of attention depends on whether gradients are computed, so that two traces differ.
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with quiet():
            return ov.convert_model(model.eval(), example_input=torch.zeros(2, 3, *size))
    # What PyTorch's tracer or OpenVINO can't do is reported by many types, with pages of the graph.
    except Exception as err:
        what = next((line.strip() for line in str(err).splitlines() if line.strip()), type(err).__name__)
        raise ModelError(
            f"OpenVINO can't convert {type(model).__name__} of this PyTorch: {what}; export it by torch.onnx.export, "
            "and prepare the ONNX file"
        ) from err


def _download(url: str) -> str:
    """Put a file where torchvision looks for it, unless it is there; returns its SHA-256.

    Raises:
        ModelError: it can't be had, or its SHA-256 doesn't begin with the digits in its name.
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
    expected = re.search(r"-([0-9a-f]{8,})\.", name)
    if expected is None or not digest.startswith(expected[1]):
        raise ModelError(f"{file} is damaged: its SHA-256 {digest} doesn't begin as its name says; delete it")
    return digest


def _from_hub(repository: str) -> Path:
    """Find the weights of a repository of the Hugging Face hub, whose cache names each large file by its SHA-256.

    Raises:
        ModelError: they can't be had, or don't match.
    """
    from huggingface_hub import hf_hub_download

    try:
        file = Path(hf_hub_download(repository, "model.safetensors"))
    except (OSError, ValueError) as err:
        raise ModelError(f"can't get the weights of {repository}: {err}; --weights random needs no network") from err
    if file.resolve().name != sha256(file):
        raise ModelError(f"{file} is damaged: its SHA-256 is not what the hub says; delete it")
    return file
