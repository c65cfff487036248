"""Quantizes a model of the repository to int8 after training, and writes it as the next version if it loses little.

    ensemble quantize resnet --data train.zip --validation test.zip --repository models

Needs the `quantize` extra (NNCF). Calibration and validation images are decoded by the server's own code. Without
--validation, images of --data that calibration does not use are held out, at least half of them; where their classes
are not the model's, its answers are compared with the float model's. A version is not written if it loses more top-1
than `--max-drop` points, or if its weights did not shrink by half (a tenth of that is allowed for scales and biases):
NNCF then found nothing to quantize, and the model would be no faster.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import openvino as ov

from deployments.contract.payload import Pixels, Probabilities
from deployments.repository.baking import fold
from deployments.repository.errors import ModelError
from deployments.repository.network import load, precision, without_temperature
from deployments.repository.repository import LABELS, METADATA, Model, find, versions
from deployments.repository.writing import write_version
from scripts.dataset import Dataset
from scripts.errors import ScriptError, positive
from scripts.evaluate.accuracy import computed_in, decode_all, hits, predict, provenance, sample, top1, truth, without
from scripts.evaluate.candidates import preprocessing
from scripts.flags import flag
from scripts.interval import Interval
from scripts.prepare.derived import command, kept

Preset = Literal["mixed", "performance"]
BiasCorrection = Literal["fast", "accurate"]

# Int8 weights are 1/2 of float16 and 1/4 of float32; what is more is for scales, biases and layers that stay in float.
LARGEST_SHARE = {"FP16": 0.55, "FP32": 0.30}
MOST_HELD_OUT = 5000


@dataclass(frozen=True)
class Quantization:
    """How to quantize.

    Attributes:
        data: images to calibrate on, a zip file or folder of `<class>/*.jpg`.
        preset: `performance` quantizes activations symmetrically, `mixed` asymmetrically where that is more exact.
        bias_correction: how NNCF corrects what quantizing shifts: `fast` each layer alone, `accurate` with the layers
            before it as they are once quantized.
    """

    data: Path
    samples: int = flag(500, "images to calibrate on (default: 500)", type=positive)
    validation: Path | None = flag(None, "zip file or folder to measure on (default: the rest of --data)", type=Path)
    max_drop: float = flag(0.3, "most top-1 to lose, points (default: 0.3)", type=float)
    preset: Preset = flag("mixed", "of activations (default: mixed)", choices=get_args(Preset))
    bias_correction: BiasCorrection = flag(
        "fast", "accurate takes longer and in general loses less (default: fast)", choices=get_args(BiasCorrection)
    )
    unmeasured: bool = flag(False, "write it without knowing what it loses", action="store_true")


def quantize(repository: Path, name: str, version: int | None, settings: Quantization) -> Path:
    """Write an int8 version of a model's version, None for the highest that isn't int8; returns its folder.

    Raises:
        ModelError: NNCF is missing or can't quantize the model, it didn't shrink, or it lost too much top-1.
        ScriptError: the classes of the validation images are not the model's, or there are none to measure on.
        DatasetError: a path holds no labelled images.
    """
    source = find(repository, name, version or _highest_float(repository, name))
    if precision(source) == "INT8":
        raise ModelError(f"version {source.version} of {name!r} is int8 already; name a float one by --version")
    images = Dataset.open(settings.data)
    calibration, validation = _split(images, settings)
    if settings.validation is not None and validation is not None:
        truth(validation, source)
    wanted = preprocessing(source)
    pixels = decode_all(calibration.names, [encoded for encoded, _ in calibration.read()], wanted)
    network, nncf_version = _to_int8(without_temperature(load(source)), pixels, settings)
    metadata = {
        **kept(source, "INT8", wanted),
        "source": {
            "tool": "scripts.quantize",
            "version": source.version,
            "precision": precision(source),
            "samples": len(calibration),
            "preset": settings.preset,
            "bias_correction": settings.bias_correction,
            **provenance(images),
            "nncf": nncf_version,
            "openvino": ov.__version__,
        },
    }

    def check(quantized: Model) -> dict[str, Any]:
        check_shrunk(source, quantized)
        return {} if validation is None else {"accuracy": compare(source, quantized, validation, settings.max_drop)}

    return write_version(network, repository, name, None, metadata, compress_to_fp16=True, check=check)


def check_shrunk(source: Model, quantized: Model) -> None:
    """Raise ModelError unless the int8 weights take at most `LARGEST_SHARE` of the source's."""
    before, after = weight_bytes(source), weight_bytes(quantized)
    limit = LARGEST_SHARE[precision(source)]
    if after > limit * before:
        raise ModelError(
            f"the int8 weights take {after / before:.0%} of the {precision(source)} ones, more than {limit:.0%}: most "
            "layers were not quantized, so nothing was written; convert the model from PyTorch or ONNX instead"
        )


def compare(source: Model, quantized: Model, validation: Dataset, max_drop: float) -> dict[str, Any]:
    """Measure what the quantized model loses.

    Where the images' classes are the model's, that is top-1. Elsewhere it is what is to be expected if the float
    model's probabilities are right: on an image to which both answer another class, the difference of these classes'.

    Returns:
        The `accuracy` entry for the metadata: `top1` and `source_top1`, in percent; or `agreement`, the percentage of
        the images to which both answer the same class, and `expected_drop`, in points.

    Raises:
        ModelError: the quantized one lost more than `max_drop` points.
    """
    before, after = predict([source, quantized], validation)
    try:
        labels = truth(validation, source)
    except ScriptError as err:
        found = _agreement(before, after)
        drop = found["expected_drop"]
        print(
            f"{err}; so its answers to {len(validation)} images are compared with the float model's: "
            f"{found['agreement']:.2f} % are the same, and {drop:.2f} points are lost if its probabilities are right"
        )
    else:
        found = {"top1": top1(after, labels), "source_top1": top1(before, labels)}
        drop = found["source_top1"] - found["top1"]
        lost = Interval.paired(hits(before, labels) - hits(after, labels))
        print(
            f"top-1 of {len(validation)} images: {precision(source)} {found['source_top1']:.2f} %, INT8 "
            f"{found['top1']:.2f} %; the loss is {drop:.2f} points (95 % interval {lost.low:.2f} to {lost.high:.2f})"
        )
    # Rounded, because 89.3 - 89.0 is a little more than 0.3 in binary.
    if round(drop, 6) > max_drop:
        raise ModelError(
            f"int8 loses {drop:.2f} points of top-1, more than {max_drop}, so nothing was written; "
            "try --bias-correction accurate, --preset mixed, more --samples, or a larger --max-drop"
        )
    return {**found, "images": len(validation), "computed_in": computed_in(), **provenance(validation)}


def _agreement(before: Probabilities, after: Probabilities) -> dict[str, float]:
    """How alike two models answer, float32 [images,classes] each; the first one's probabilities say what is lost."""
    rows, own, other = np.arange(len(before)), before.argmax(axis=1), after.argmax(axis=1)
    lost = before[rows, own].astype(np.float64) - before[rows, other]
    return {"agreement": 100 * float((own == other).mean()), "expected_drop": 100 * float(lost.mean())}


def weight_bytes(model: Model) -> int:
    """The size of a model's weights: of the IR's .bin, else of all files of the version but metadata and labels.

    Other formats keep their weights in the model's file or beside it (PaddlePaddle; ONNX with external data).
    """
    weights = model.path.with_suffix(".bin")
    if weights.is_file():
        return weights.stat().st_size
    files = (file for file in model.folder.rglob("*") if file.is_file())
    return sum(file.stat().st_size for file in files if file.name not in (METADATA, LABELS))


def _highest_float(repository: Path, name: str) -> int | None:
    models = [find(repository, name, version) for version in versions(repository, name)]
    return max((model.version for model in models if precision(model) != "INT8"), default=None)


def _split(images: Dataset, settings: Quantization) -> tuple[Dataset, Dataset | None]:
    """The images to calibrate on, and those to measure on; None for nothing to be measured."""
    if settings.validation is not None or settings.unmeasured:
        validation = Dataset.open(settings.validation) if settings.validation is not None else None
        return sample(images, settings.samples), validation
    calibration = sample(images, min(settings.samples, len(images) // 2))
    if not len(calibration):
        raise ScriptError(f"{images.path} has one image; --validation names others, --unmeasured writes without")
    return calibration, sample(without(images, calibration), MOST_HELD_OUT)


def _to_int8(network: ov.Model, pixels: Pixels, settings: Quantization) -> tuple[ov.Model, str]:
    """Quantize with NNCF, calibrating on pixels, uint8 [N,H,W,3]; returns NNCF's version as well."""
    try:
        import nncf
    except ImportError as err:
        raise ModelError("quantizing needs NNCF: pip install nncf") from err
    fold(network)
    batch = network.input(0).get_partial_shape()[0]
    rows = 1 if batch.is_dynamic else batch.get_length()
    inputs = [np.repeat(image[None], rows, axis=0) for image in pixels]
    try:
        quantized = nncf.quantize(
            network,
            nncf.Dataset(inputs),
            preset=nncf.QuantizationPreset(settings.preset),
            subset_size=len(inputs),
            fast_bias_correction=settings.bias_correction == "fast",
        )
    except (RuntimeError, nncf.InternalError, nncf.ValidationError, nncf.UnsupportedModelError) as err:
        raise ModelError(f"NNCF can't quantize the model: {err}") from err
    return quantized, str(nncf.__version__)


def main() -> None:
    """Parse the command line and quantize."""
    of, data = "version to quantize (default: the highest float one)", "zip or folder of <class>/*.jpg to calibrate on"
    command(__doc__, Quantization, quantize, of=of, data=data)


if __name__ == "__main__":
    main()
