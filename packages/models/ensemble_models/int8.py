"""The search for the int8 network that is most like a float one, among NNCF's settings."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Literal

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino.passes import ConstantFolding, Manager

from deployments.contract.payload import Pixels, Probabilities
from deployments.repository.errors import ModelError
from ensemble_models.options import Table
from ensemble_models.prediction import network_probabilities
from ensemble_models.statistics import SMALLEST

LAYERS = ("Convolution", "GroupConvolution", "MatMul")
# How many layers at the start may be left out: they see the image, and have few weights unless the network is small.
FIRST, FEWEST = 3, 12
# While little loss is expected, the first layers stay float if that lowers the divergence to this share or less. For
# EfficientNet-Lite0 the share is 0.18, at the same CPU time; for the bundled DenseNet 0.89, at 1.7 times the time.
WORTH = 0.5


@dataclass(frozen=True)
class Recipe:
    """How NNCF quantizes a network.

    Attributes:
        preset: `performance` quantizes activations symmetrically, `mixed` asymmetrically where that is more exact.
        bias_correction: how NNCF corrects what quantizing shifts: `fast` each layer alone, `accurate` with the layers
            before it as they are once quantized.
        left_out: the layers that stay float.
    """

    preset: Literal["mixed", "performance"]
    bias_correction: Literal["fast", "accurate"] = "fast"
    left_out: Literal["none", "first layers"] = "none"


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


def search(load: Callable[[], ov.Model], pixels: Pixels, enough: float) -> Quantized:
    """Quantize a network in several ways, print how far each is from it, and return the nearest that is worth its cost.

    Args:
        load: reads the float network, uint8 BGR [N,H,W,3] to float32 [N,classes].
        pixels: of the images to calibrate on, uint8 [N,H,W,3].
        enough: the drop, points, down to which loss is little.

    Raises:
        ModelError: NNCF is missing or can't quantize the network.
    """
    original = load()
    reference, is_large = network_probabilities(original, pixels), len(layers(original)) >= FEWEST

    def quantized(recipe: Recipe) -> Quantized:
        network = to_int8(load(), pixels, recipe)
        answers = network_probabilities(network, pixels)
        drop = 100 * float(expected_drop(reference, answers).mean())
        return Quantized(recipe, network, divergence(reference, answers), drop)

    tried = [quantized(Recipe("mixed")), quantized(Recipe("performance"))]
    best = nearest(tried)
    if best.drop > enough or is_large:
        tried.append(first := quantized(replace(best.recipe, left_out="first layers")))
        if best.drop > enough or first.divergence <= WORTH * best.divergence:
            best = nearest([best, first])
    if best.drop > enough:
        # It takes minutes, and paid for a DenseNet (lab/training/README.md).
        tried.append(accurate := quantized(replace(best.recipe, bias_correction="accurate")))
        best = nearest([best, accurate])
    lines = [(*asdict(each.recipe).values(), f"{each.divergence:.4f}", f"{each.drop:.2f}") for each in tried]
    headings = ("preset", "bias correction", "layers left in float", "KL divergence, nats", "expected loss, points")
    Table(headings, lines, (0, 1, 2), f"int8 against float, {len(pixels)} calibration images").show()
    return best


def nearest(tried: list[Quantized]) -> Quantized:
    """Return the network whose probabilities are most like the float network's."""
    return min(tried, key=lambda each: each.divergence)


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
    return np.asarray(true.max(axis=1) - true[rows, other.argmax(axis=1)], np.float64)


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
    left_out = layers(network)[:FIRST] if recipe.left_out == "first layers" else []
    try:
        return nncf.quantize(
            network,
            nncf.Dataset(inputs),
            preset=nncf.QuantizationPreset(recipe.preset),
            subset_size=len(inputs),
            fast_bias_correction=recipe.bias_correction == "fast",
            ignored_scope=nncf.IgnoredScope(names=left_out),
        )
    except (RuntimeError, nncf.InternalError, nncf.ValidationError, nncf.UnsupportedModelError) as err:
        raise ModelError(f"NNCF can't quantize the model: {err}") from err


def layers(network: ov.Model) -> list[str]:
    """List the names of the layers that NNCF quantizes, from the input on."""
    return [node.get_friendly_name() for node in network.get_ordered_ops() if node.get_type_name() in LAYERS]


def fold(network: ov.Model) -> None:
    """Fold constants, in place.

    After reshaping, shapes depend on weights (OpenVINO's smart reshape). Unless that is folded before NNCF quantizes,
    the float weights stay beside the int8 ones: 4 MB of ResNet-50's 30.
    """
    folding = Manager()
    folding.register_pass(ConstantFolding())
    folding.run_passes(network)
