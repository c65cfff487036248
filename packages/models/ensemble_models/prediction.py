"""Predictions for labelled images, by versions of models of a repository or of a configuration's members."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from math import prod
from statistics import median
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from tqdm import tqdm

from deployments.contract.batch import Batch
from deployments.contract.errors import ConfigurationError
from deployments.contract.item import Item
from deployments.contract.member import MemberInterface, preprocessing_fields
from deployments.contract.nodes import Node
from deployments.contract.payload import Pixels, Probabilities
from deployments.contract.preprocessing import AsSent, MemberInput, Preprocessing
from deployments.members import Member
from deployments.members.local import LocalMember
from deployments.members.openvino import OpenVino
from deployments.members.predictor import infer_now
from deployments.members.versioned import check
from deployments.repository.errors import ModelError, reason
from deployments.repository.heads import Head, recognize
from deployments.repository.network import input_size, load, read
from deployments.repository.repository import LABELS, METADATA, Folder, Model
from ensemble_models.dataset import Dataset, decode_all
from graph.config import EnsembleConfig
from graph.signature import EnsembleSignature
from scripts.errors import ScriptError

PRECISIONS = ("FP32", "FP16", "INT8")
# The precision of a model on another server.
UNKNOWN = "unknown"
# A batch of the server's own size, so that members on other servers take it.
AT_ONCE = 16
# The share of the range of scores by which rounding in batches of other sizes may change one.
SAME_SCORES = 0.02

Predict = Callable[[Pixels | NDArray[np.float32]], Probabilities]


@dataclass(frozen=True)
class Candidate:
    """A version of a model, by the name of the model or of the member that it belongs to.

    Attributes:
        version: its number; None where another server does not report one.
        precision: `FP32`, `FP16`, `INT8` or `unknown`.
        wanted: the pixels that it takes.
        node: predicts; see `MemberConfig.make`.
        is_served: whether it is the version that the configuration serves.
        model: its files; None for a member on another server.
    """

    name: str
    version: int | None
    precision: str
    wanted: MemberInput
    node: Node[Any, Probabilities]
    is_served: bool = False
    model: Model | None = None


def of_models(models: Sequence[Model]) -> list[Candidate]:
    """Make candidates of a repository's versions, each with the pixels that it was prepared for.

    Raises:
        ModelError: a model is damaged, or fixes no input size.
        ConfigurationError: a model can't run.
    """
    # In the first one's order of the classes, if they have the same.
    named = [model.labels or () for model in models]
    labels = named[0] if named and all(set(each) == set(named[0]) for each in named) else ()
    return [_of_model(OpenVino(name=each.name), each, MemberInterface(preprocessing(each), labels)) for each in models]


def of_configuration(config: EnsembleConfig, agreed: EnsembleSignature) -> list[Candidate]:
    """List the versions of each member that could take the served one's place, and members on other servers.

    Raises:
        ConfigurationError: a member can't run.
    """
    return [candidate for member in config.members for candidate in _of_member(member, config, agreed)]


def _of_member(member: Member, config: EnsembleConfig, agreed: EnsembleSignature) -> Iterator[Candidate]:
    wanted = agreed.preprocessing[member.name]
    interface = agreed.interface(member.name)
    if not isinstance(member, LocalMember) or not isinstance(wanted, Preprocessing):
        node = member.make(config.model_repository, interface, config.ingress.max_batch_size)
        yield Candidate(member.name, None, UNKNOWN, wanted, node, is_served=True)
        return
    repository, name = member.repository_and_name(config.model_repository)
    served = member.find(config.model_repository)
    # From a repository at an address only the served version is fetched.
    for version in repository.versions(name) if isinstance(repository, Folder) else [served.version]:
        model = repository.find(name, version)
        try:
            check(member, model, interface)
        except (ConfigurationError, ModelError):
            continue
        yield _of_model(member, model, interface, version == served.version)


def _of_model(member: LocalMember, model: Model, interface: MemberInterface, is_served: bool = False) -> Candidate:
    node = member.load(model, interface, 1)
    return Candidate(member.name, model.version, precision(model), interface.images, node, is_served, model)


def preprocessing(model: Model) -> Preprocessing:
    """Read the pixels that a model was prepared for: their size is the network's own, or else the metadata name it.

    Raises:
        ModelError: the model is damaged or no classifier, fixes no size, or its metadata are wrong.
    """
    height, width = input_size(load(model)) or (model.input.get("height"), model.input.get("width"))
    if not isinstance(height, int) or not isinstance(width, int):
        raise ModelError(f"model {model.name!r} fixes no input size; prepare it with --size")
    return Preprocessing((height, width), **preprocessing_fields(model.input))


def stored_precision(model: Model) -> str:
    """Return the precision of most of a model's stored weights: `FP32`, `FP16`, or `INT8` for 8 bits or fewer.

    Raises:
        ModelError: OpenVINO can't read the model.
    """
    bits: Counter[int] = Counter()
    for node in read(model).get_ordered_ops():
        if node.get_type_name() == "Constant":
            bits[node.get_output_element_type(0).bitwidth] += prod(node.get_output_shape(0))
    most = bits.most_common(1)[0][0] if bits else 32
    return "INT8" if most <= 8 else "FP16" if most == 16 else "FP32"


def precision(model: Model) -> str:
    """Return the precision in the metadata, `FP32`, `FP16` or `INT8`; else the precision of the stored weights."""
    described = model.metadata.get("precision")
    return described if described in PRECISIONS else stored_precision(model)


def weight_bytes(model: Model) -> int:
    """Count the bytes of a model's weights: the IR's .bin, else all files of the version but metadata and labels.

    Other formats keep their weights in the model's file or beside it (PaddlePaddle; ONNX with external data).
    """
    weights = model.path.with_suffix(".bin")
    if weights.is_file():
        return weights.stat().st_size
    files = (file for file in model.folder.rglob("*") if file.is_file())
    return sum(file.stat().st_size for file in files if file.name not in (METADATA, LABELS))


def predict(models: Sequence[Model], dataset: Dataset) -> list[Probabilities]:
    """Predict every image by every model of a repository; see `measured_predictions`."""
    return measured_predictions(of_models(models), dataset)[0]


def measured_predictions(
    candidates: Sequence[Candidate], dataset: Dataset
) -> tuple[list[Probabilities], list[float | None]]:
    """Predict every image by every candidate.

    Returns:
        One float32 [images,classes] for each candidate, rows in the order of the dataset; and this process' CPU time
        of each one's inference per image, ms, the median of the batches. It is None for a member on another server.

    Raises:
        ScriptError: an image can't be decoded, or a candidate fails on one.
    """
    parts: list[list[Probabilities]] = [[] for _ in candidates]
    took: list[list[float]] = [[] for _ in candidates]
    images = zip(dataset.names, dataset.read(), strict=True)
    bar = tqdm(total=len(dataset), desc="predict", unit="img", leave=False, disable=None)
    with bar, asyncio.Runner() as loop:
        while chunk := list(islice(images, AT_ONCE)):
            names, encoded = [name for name, _ in chunk], [image for _, (image, _) in chunk]
            made: dict[str, Any] = {AsSent().key: encoded}
            for candidate, outputs, times in zip(candidates, parts, took, strict=True):
                wanted = candidate.wanted
                if isinstance(wanted, Preprocessing) and wanted.key not in made:
                    made[wanted.key] = decode_all(names, encoded, wanted)
                began = time.process_time()
                answer = loop.run(candidate.node(Batch(made[wanted.key], (Item(),) * len(names))))
                times.append(1000 * (time.process_time() - began) / len(names))
                if error := next((item.error for item in answer.items if item.error is not None), None):
                    raise ScriptError(f"{candidate.name!r}: {error}")
                outputs.append(answer.payload)
            bar.update(len(names))
    costs = [None if each.model is None else median(times) for each, times in zip(candidates, took, strict=True)]
    return [np.concatenate(outputs) for outputs in parts], costs


def computed_in() -> str:
    """Return the type in which OpenVINO computes float models on this CPU, `f32` or `bf16`; top-1 depends on it."""
    hint: ov.Type = ov.Core().get_property("CPU", "INFERENCE_PRECISION_HINT")
    return str(hint.to_string())


def network_probabilities(network: ov.Model, pixels: Pixels) -> Probabilities:
    """Predict the probabilities of every image in float32, float32 [images,classes]."""
    return runner(network, INFERENCE_PRECISION_HINT="f32")(pixels)


def scores_of(network: ov.Model, size: tuple[int, int], images: Pixels | None = None) -> Probabilities:
    """Compute what a network, uint8 BGR [N,H,W,3] to float32 [N,classes], answers to noise, and to images, if any.

    Raises:
        ModelError: the scores of an image differ by the images beside it, or from call to call.
    """
    noise = np.random.default_rng(0).integers(0, 256, (6, *size, 3), np.uint8)
    # Dark, bright, of little contrast and of one colour, so that rows differ.
    noise[1], noise[2], noise[3] = noise[1] // 4, 255 - noise[2] // 4, 96 + noise[3] // 4
    noise[4], noise[5] = (220, 40, 10), (10, 60, 230)
    predict = runner(network, INFERENCE_PRECISION_HINT="f32")
    scores = predict(noise if images is None else np.concatenate([noise, images]))
    alone = np.concatenate([predict(image[None]) for image in noise])
    apart = np.abs(np.nan_to_num(scores[: len(alone)]) - np.nan_to_num(alone)).max()
    if apart > SAME_SCORES * np.ptp(np.nan_to_num(scores)):
        raise ModelError(
            "the scores of an image differ by the images beside it in a batch, or from call to call: export the model "
            "for inference (model.eval()), without dropout, noise or the statistics of a batch"
        )
    return scores


def head_of(network: ov.Model, size: tuple[int, int]) -> Head:
    """Recognize the head of a network; raises ModelError, see `recognize` and `scores_of`."""
    return recognize(network, scores_of(network, size))


def runner(network: ov.Model, **options: str) -> Predict:
    """Compile a network, pixels [N,H,W,3] to float32 [N,classes], into a function of any number of images.

    The function raises RuntimeError if the network fails.

    Raises:
        ModelError: OpenVINO can't compile it.
    """
    try:
        request = ov.Core().compile_model(network, "CPU", options).create_infer_request()
    except RuntimeError as err:
        raise ModelError(f"OpenVINO can't run the model: {reason(err)}") from err
    fixed = network.input(0).get_partial_shape()[0]
    rows = AT_ONCE if fixed.is_dynamic else fixed.get_length()

    def run(pixels: Pixels | NDArray[np.float32]) -> Probabilities:
        # A model that fixes its batch gets the last image again where images are lacking.
        lacking = 0 if fixed.is_dynamic else -len(pixels) % rows
        filled = np.concatenate([pixels, *[pixels[-1:]] * lacking])
        parts = [infer_now(request, filled[start : start + rows]) for start in range(0, len(filled), rows)]
        return np.concatenate(parts)[: len(pixels)]

    return run
