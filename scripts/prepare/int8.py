"""The search for the int8 network that is most like a float one, among NNCF's settings, within a budget of time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from deployments.contract.payload import Pixels, Probabilities
from deployments.repository.baking import fold
from deployments.repository.errors import ModelError
from deployments.repository.network import SMALLEST
from scripts.prepare.normalization import predict
from scripts.results import Table

LAYERS = ("Convolution", "GroupConvolution", "MatMul")
LeftOut = Literal["none", "first layers", "depthwise layers"]
# How many layers at the start are left out: they see the image, and have few weights.
FIRST = 3


@dataclass(frozen=True)
class Recipe:
    """How NNCF quantizes a network.

    Attributes:
        preset: `performance` quantizes activations symmetrically, `mixed` asymmetrically where that is more exact.
        bias_correction: how NNCF corrects what quantizing shifts: `fast` each layer alone, `accurate` with the layers
            before it as they are once quantized.
        left_out: the layers that stay float.
    """

    preset: Literal["mixed", "performance"] = "mixed"
    bias_correction: Literal["fast", "accurate", "none"] = "fast"
    left_out: LeftOut = "none"


@dataclass(frozen=True)
class Quantized:
    """A quantized network, and how far it is from the float one.

    Attributes:
        divergence: of the images' distributions, mean, in nats (Kullback and Leibler).
        drop: the points of top-1 that are lost if the float network's probabilities are right.
    """

    recipe: Recipe
    network: ov.Model
    divergence: float
    drop: float


def search(load: Callable[[], ov.Model], pixels: Pixels, enough: float, budget_s: float) -> Quantized:
    """Quantize a network in several ways, print how far each is from it, and return the nearest.

    Args:
        load: reads the float network, uint8 BGR [N,H,W,3] to float32 [N,classes].
        pixels: of the images to calibrate on, uint8 [N,H,W,3].
        enough: the drop, points, down to which no layer is left in float.
        budget_s: once so many seconds would be over, no other way is tried.

    Raises:
        ModelError: NNCF is missing or can't quantize the network.
    """
    began, longest, tried = time.monotonic(), 0.0, list[Quantized]()
    reference = predict(load(), pixels)
    for recipe in _recipes(load(), tried, enough):
        start = time.monotonic()
        if tried and start - began + longest > budget_s:
            print(f"the budget of {budget_s:g} s ends the search: --budget allows more")
            break
        network = to_int8(load(), pixels, recipe)
        answers = predict(network, pixels)
        drop = float(expected_drop(reference, answers).mean())
        tried.append(Quantized(recipe, network, divergence(reference, answers), 100 * drop))
        longest = max(longest, time.monotonic() - start)
    lines = [(*vars(each.recipe).values(), f"{each.divergence:.4f}", f"{each.drop:.2f}") for each in tried]
    headings = ("preset", "bias correction", "layers left in float", "KL divergence, nats", "expected loss, points")
    Table(headings, lines, (0, 1, 2), f"int8 against float, {len(pixels)} calibration images").show()
    return _best(tried)


def divergence(reference: Probabilities, other: Probabilities) -> float:
    """Compute the mean Kullback-Leibler divergence of distributions, [N,C], from reference ones, in nats."""
    true, found = (np.maximum(each.astype(np.float64), SMALLEST) for each in (reference, other))
    return float((true * np.log(true / found)).sum(axis=1).mean())


def expected_drop(reference: Probabilities, other: Probabilities) -> NDArray[np.float64]:
    """Compute what another model, [N,C], loses on each image, [N], if the reference's probabilities, [N,C], are right.

    That is the difference of the probabilities of the two classes that the models answer.
    """
    rows = np.arange(len(reference))
    true = reference.astype(np.float64)
    lost: NDArray[np.float64] = true.max(axis=1) - true[rows, other.argmax(axis=1)]
    return lost


def _recipes(network: ov.Model, tried: list[Quantized], enough: float) -> Iterator[Recipe]:
    """Yield both settings of the activations, and while more is lost than enough, the best one with changes."""
    yield Recipe("mixed")
    yield Recipe("performance")
    left_out: list[dict[str, Any]] = [{"left_out": each} for each in get_args(LeftOut) if _layers(network, each)]
    for change in (*left_out, {"bias_correction": "none"}, {"bias_correction": "accurate"}):
        if _best(tried).drop > enough:
            yield replace(_best(tried).recipe, **change)


def _best(tried: list[Quantized]) -> Quantized:
    return min(tried, key=lambda each: each.divergence)


def _layers(network: ov.Model, left_out: LeftOut) -> list[str]:
    """List the names of the layers that a recipe leaves in float."""
    layers = [node for node in network.get_ordered_ops() if node.get_type_name() in LAYERS]
    chosen = {
        "none": [],
        "first layers": layers[:FIRST],
        "depthwise layers": [node for node in layers if node.get_type_name() == "GroupConvolution"],
    }[left_out]
    return [str(node.get_friendly_name()) for node in chosen]


def to_int8(network: ov.Model, pixels: Pixels, recipe: Recipe) -> ov.Model:
    """Quantize with NNCF, calibrating on pixels, uint8 [N,H,W,3]; raises ModelError if it is missing or fails."""
    try:
        import nncf
    except ImportError as err:
        raise ModelError("quantizing needs NNCF: pip install nncf") from err
    fold(network)
    batch = network.input(0).get_partial_shape()[0]
    rows = 1 if batch.is_dynamic else batch.get_length()
    inputs = [np.repeat(image[None], rows, axis=0) for image in pixels]
    advanced = nncf.AdvancedQuantizationParameters(disable_bias_correction=recipe.bias_correction == "none")
    left_out: Any = nncf.IgnoredScope(names=_layers(network, recipe.left_out))
    try:
        return nncf.quantize(
            network,
            nncf.Dataset(inputs),
            preset=nncf.QuantizationPreset(recipe.preset),
            subset_size=len(inputs),
            fast_bias_correction=recipe.bias_correction != "accurate",
            ignored_scope=left_out,
            advanced_parameters=advanced,
        )
    except (RuntimeError, nncf.InternalError, nncf.ValidationError, nncf.UnsupportedModelError) as err:
        raise ModelError(f"NNCF can't quantize the model: {err}") from err
