"""Quantizes a model of the repository to int8 after training, and writes the next version if it is worth having.

    python -m scripts.quantize resnet --data train.zip --validation test.zip --repository models

Needs the `quantize` extra (NNCF). Calibration and validation images are decoded by the server's own code. Refused are
versions that lost more top-1 than `--max-drop` points, and versions whose weights did not shrink by half (a tenth of
that is allowed for scales and biases): NNCF then found nothing to quantize, and the model would be no faster.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import openvino as ov

from deployments.contract.payload import Pixels
from models.baking import fold
from models.errors import ModelError
from models.network import load, precision
from models.repository import DEFAULT_ROOT, LABELS, METADATA, Model, find, versions
from models.writing import describe, input_metadata, write_version
from scripts.dataset import Dataset
from scripts.errors import ScriptError, positive, told_in_one_line
from scripts.evaluate.accuracy import (
    computed_in,
    decode_all,
    predict,
    preprocessing,
    provenance,
    sample,
    top1,
    truth,
    without,
)

Preset = Literal["mixed", "performance"]
BiasCorrection = Literal["fast", "accurate"]

# Int8 weights are 1/2 of float16 and 1/4 of float32; what is more is for scales, biases and layers that stay in float.
LARGEST_SHARE = {"FP16": 0.55, "FP32": 0.30}
MOST_HELD_OUT = 5000


@dataclass(frozen=True)
class Quantization:
    """How to quantize.

    Attributes:
        data: images to calibrate on, a zip or folder of `<class>/*.jpg`.
        samples: how many of them.
        validation: images to measure top-1 on; None for those of `data` that calibration left over, if their
            classes are the model's.
        max_drop: the most top-1 that may be lost, in points of percent.
        preset: `performance` quantizes activations symmetrically, `mixed` asymmetrically where that is more exact.
        bias_correction: how NNCF corrects what quantizing shifts: `fast` each layer alone, `accurate` with the layers
            before it as they are once quantized, which in general loses less top-1, and takes longer.
    """

    data: Path
    samples: int = 500
    validation: Path | None = None
    max_drop: float = 0.3
    preset: Preset = "mixed"
    bias_correction: BiasCorrection = "fast"


def quantize(repository: Path, name: str, version: int | None, settings: Quantization) -> Path:
    """Write an int8 version of a model.

    Args:
        repository: the root of the model repository.
        name: the model.
        version: the version to quantize; None for the highest that isn't int8.
        settings: how.

    Returns:
        The new version's folder.

    Raises:
        ModelError: NNCF is missing or can't quantize the model, it didn't shrink, or it lost too much top-1.
        ScriptError: the classes of the validation images are not the model's.
        DatasetError: a path holds no labelled images.
    """
    source = find(repository, name, version or _highest_float(repository, name))
    if precision(source) == "INT8":
        raise ModelError(f"version {source.version} of {name!r} is int8 already; name a float one by --version")
    images = Dataset.open(settings.data)
    calibration = sample(images, settings.samples)
    wanted = preprocessing(source)
    validation = _validation(source, images, calibration, settings.validation)
    pixels = decode_all(calibration.names, [encoded for encoded, _ in calibration.read()], wanted)
    network, nncf_version = _to_int8(load(source), pixels, settings)
    metadata = {
        "precision": "INT8",
        **({"classes": list(source.labels)} if source.labels else {}),
        "input": {**input_metadata(wanted.size, wanted.crop_ratio), **source.input},
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
        return {} if validation is None else compare(source, quantized, validation, settings.max_drop)

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
    """Measure both models.

    Returns:
        The `accuracy` entry for the metadata: `top1` and `source_top1`, in percent.

    Raises:
        ModelError: the quantized one lost more than `max_drop` points.
    """
    labels = truth(validation, source)
    before, after = (top1(answers, labels) for answers in predict([source, quantized], validation))
    print(f"top-1 of {len(validation)} images: {before:.2f} % {precision(source)}, {after:.2f} % INT8")
    # Rounded, because 89.3 - 89.0 is a little more than 0.3 in binary.
    if round(before - after, 6) > max_drop:
        raise ModelError(
            f"int8 loses {before - after:.2f} points of top-1, more than {max_drop}, so nothing was written; "
            "try --bias-correction accurate, --preset mixed, more --samples, or a larger --max-drop"
        )
    accuracy = {"top1": after, "source_top1": before, "images": len(validation), "computed_in": computed_in()}
    return {"accuracy": {**accuracy, **provenance(validation)}}


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


def _validation(source: Model, images: Dataset, calibration: Dataset, path: Path | None) -> Dataset | None:
    if path is not None:
        dataset = Dataset.open(path)
        truth(dataset, source)
        return dataset
    rest = without(images, calibration)
    try:
        if len(rest) == 0:
            raise ScriptError("calibration took every image")
        truth(rest, source)
    except ScriptError as err:
        print(f"top-1 is not measured: {err}; name labelled images by --validation")
        return None
    return sample(rest, MOST_HELD_OUT)


def _to_int8(network: ov.Model, pixels: Pixels, settings: Quantization) -> tuple[ov.Model, str]:
    """Quantize with NNCF, calibrating on pixels, uint8 [N,H,W,3]; returns NNCF's version as well."""
    try:
        import nncf
    except ImportError as err:
        raise ModelError("quantizing needs NNCF: pip install -e '.[quantize]'") from err
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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `Quantization`, which `scripts.prepare` has as well."""
    parser.add_argument("--samples", type=positive, default=500, help="images to calibrate on (default: 500)")
    parser.add_argument("--validation", type=Path, help="zip or folder to measure top-1 on (default: rest of --data)")
    parser.add_argument("--max-drop", type=float, default=0.3, help="most top-1 to lose, points (default: 0.3)")
    parser.add_argument("--preset", choices=get_args(Preset), default="mixed")
    parser.add_argument(
        "--bias-correction",
        choices=get_args(BiasCorrection),
        default="fast",
        help="accurate takes longer and in general loses less (default: fast)",
    )


def from_arguments(args: argparse.Namespace) -> Quantization:
    """The settings that `add_arguments` and `--data` made."""
    return Quantization(args.data, args.samples, args.validation, args.max_drop, args.preset, args.bias_correction)


def main() -> None:
    """Parse the command line and quantize."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", help="model of the repository")
    parser.add_argument("--version", type=positive, help="version to quantize (default: the highest float one)")
    parser.add_argument("--data", type=Path, required=True, help="zip or folder of <class>/*.jpg to calibrate on")
    parser.add_argument("--repository", type=Path, default=DEFAULT_ROOT, help="default: the models in the box")
    add_arguments(parser)
    args = parser.parse_args()
    with told_in_one_line():
        folder = quantize(args.repository, args.name, args.version, from_arguments(args))
        print(f"wrote {describe(folder)}")


if __name__ == "__main__":
    main()
