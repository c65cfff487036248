"""Quantizes models to int8 after training, and writes an int8 version where it is worth it."""

from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.metadata import version as metadata_version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import openvino as ov

from deployments.members.openvino_autotune import WORTH, cpu_ms
from deployments.repository.errors import ModelError
from deployments.repository.network import load
from deployments.repository.repository import Model, find, versions
from ensemble_models.baking import without_temperature
from ensemble_models.dataset import Dataset, decode_all, sample, truth
from ensemble_models.int8 import expected_drop, search
from ensemble_models.learnt import ASIDE, provenance
from ensemble_models.options import FILE, POSITIVE, Command, option, repository_option
from ensemble_models.prediction import computed_in, precision, predict, preprocessing, weight_bytes
from ensemble_models.statistics import Interval, hits, paired, top1
from ensemble_models.writing import MODEL, derived_metadata, describe, write_version
from scripts.errors import ScriptError

# Int8 weights are 1/2 of float16 and 1/4 of float32; what is more is for scales, biases and layers that stay in float.
LARGEST_SHARE = {"FP16": 0.55, "FP32": 0.30}
MOST_HELD_OUT = 5000
# What a version that is not to be served is called, behind the model's name.


@dataclass(frozen=True)
class Quantization:
    """How to quantize.

    Attributes:
        data: images to calibrate on, a zip file or folder of `<class>/*.jpg`.
        samples: how many of them.
        validation: images to measure on; None for others of `data`.
        max_drop: the most top-1 to lose, points.
        unmeasured: whether it is written without a measurement of its loss.
    """

    data: Path
    samples: int = 500
    validation: Path | None = None
    max_drop: float = 0.3
    unmeasured: bool = False


def quantize(repository: Path, name: str, version: int | None, settings: Quantization) -> Path:
    """Write an int8 version of a model's version, None for the highest that isn't int8; returns its folder.

    Raises:
        ModelError: NNCF is missing or can't quantize the model, it didn't shrink, or it lost too much top-1.
        ScriptError: the classes of the validation images are not the model's, or there are none to measure on.
        DatasetError: a path holds no labelled images.
    """
    if version is None:
        every = [find(repository, name, each) for each in versions(repository, name)]
        version = max((each.version for each in every if precision(each) != "INT8"), default=None)
    source = find(repository, name, version)
    if precision(source) == "INT8":
        raise ModelError(f"version {source.version} of {name!r} is int8 already; name a float one by --version")
    images = Dataset.open(settings.data)
    calibration, validation = _split(images, settings)
    if settings.validation is not None and validation is not None:
        truth(validation, source)
    wanted = preprocessing(source)
    pixels = decode_all(calibration.names, [encoded for encoded, _ in calibration.read()], wanted)
    found = search(lambda: without_temperature(load(source)), pixels, settings.max_drop)
    metadata = {
        **derived_metadata(source, "INT8", wanted),
        "source": {
            "tool": "scripts.quantize",
            "model": source.name,
            "version": source.version,
            "precision": precision(source),
            "samples": len(calibration),
            **asdict(found.recipe),
            **provenance(images),
            "nncf": metadata_version("nncf"),
            "openvino": ov.__version__,
        },
    }
    with TemporaryDirectory() as folder:
        file = Path(folder) / MODEL
        ov.save_model(found.network, file, compress_to_fp16=True)
        quantized = Model(name, source.version, file, metadata)
        check_shrunk(source, quantized)
        slower = slower_than(source, quantized)
        measured, lost = ({}, None) if validation is None else compare(source, quantized, validation)
    if measured:
        metadata["accuracy"] = measured
    write = partial(write_version, found.network, repository, version=None, metadata=metadata, compress_to_fp16=True)
    if lost is not None and lost.low > settings.max_drop:
        aside = write(name=f"{name}{ASIDE}")
        raise ModelError(
            f"int8 loses {lost.mean:.2f} points of top-1 ({paired(lost)}), more than "
            f"{settings.max_drop}, so it is not the next version of {name!r}; the best that was found is in {aside}: a "
            f"member with `model: {name}{ASIDE}` serves it. More --samples, or a larger --max-drop, may help"
        )
    if lost is not None and lost.high > settings.max_drop:
        print(
            f"accepted, because these images show no loss above {settings.max_drop} points; they do not rule out a "
            f"loss of up to {lost.high:.2f} points: more --validation images would"
        )
    if slower:
        print(f"{slower}, so the float version stays the served one; a member with `model: {name}{ASIDE}` serves int8")
    return write(name=f"{name}{ASIDE}" if slower else name)


def slower_than(source: Model, quantized: Model) -> str:
    """Measure both versions on this machine; say that int8 takes more CPU time than float, empty if it does not."""
    before, after = cpu_ms([source, quantized])
    print(f"CPU time per image: {precision(source)} in {computed_in()} {before:.2f} ms, INT8 {after:.2f} ms")
    return "int8 takes more CPU time on this machine" if WORTH * after > before else ""


def check_shrunk(source: Model, quantized: Model) -> None:
    """Raise ModelError unless the int8 weights take at most `LARGEST_SHARE` of the source's."""
    before, after = weight_bytes(source), weight_bytes(quantized)
    limit = LARGEST_SHARE[precision(source)]
    if after > limit * before:
        raise ModelError(
            f"the int8 weights take {after / before:.0%} of the {precision(source)} ones, more than {limit:.0%}: most "
            "layers were not quantized, so nothing was written; convert the model from PyTorch or ONNX instead"
        )


def compare(source: Model, quantized: Model, validation: Dataset) -> tuple[dict[str, Any], Interval]:
    """Measure and print what the quantized model loses.

    Where the images' classes are the model's, that is top-1. Elsewhere it is the expected loss: see `expected_drop`.

    Returns:
        The `accuracy` entry for the metadata: `top1` and `source_top1`, in percent; or `agreement`, the percentage of
        the images to which both answer the same class, and `expected_drop`, in points. And the loss, paired by image.
    """
    before, after = predict([source, quantized], validation)
    try:
        labels = truth(validation, source)
    except ScriptError as err:
        lost, same = Interval.paired(expected_drop(before, after)), before.argmax(axis=1) == after.argmax(axis=1)
        found = {"agreement": 100 * float(same.mean()), "expected_drop": lost.mean}
        print(
            f"{err}; so its answers to {len(validation)} images are compared with the float model's: "
            f"{found['agreement']:.2f} % are the same, and {lost.mean:.2f} points are lost if its probabilities are "
            f"right ({paired(lost)})"
        )
    else:
        found = {"top1": top1(after, labels), "source_top1": top1(before, labels)}
        lost = Interval.paired(hits(before, labels) - hits(after, labels))
        print(
            f"top-1 of {len(validation)} images: {precision(source)} {found['source_top1']:.2f} %, INT8 "
            f"{found['top1']:.2f} %; the loss is {lost.mean:.2f} points ({paired(lost)})"
        )
    return {**found, "images": len(validation), "computed_in": computed_in(), **provenance(validation)}, lost


def _split(images: Dataset, settings: Quantization) -> tuple[Dataset, Dataset | None]:
    """Split the images into those to calibrate on and those to measure on; None if nothing is measured."""
    if settings.validation is not None or settings.unmeasured:
        validation = Dataset.open(settings.validation) if settings.validation is not None else None
        return sample(images, settings.samples), validation
    calibration = sample(images, min(settings.samples, len(images) // 2))
    if not len(calibration):
        raise ScriptError(f"{images.path} has one image; --validation names others, --unmeasured writes without")
    return calibration, sample(_without(images, calibration), MOST_HELD_OUT)


def _without(dataset: Dataset, other: Dataset) -> Dataset:
    """Select the images that are not in `other`."""
    taken = set(other.names)
    return replace(dataset, names=tuple(name for name in dataset.names if name not in taken))


@click.command("quantize", cls=Command)
@click.argument("name")
@option("--version", type=POSITIVE, help="Version to quantize; default: the highest float one.")
@option("--data", type=FILE, required=True, help="Zip file or folder of <class>/*.jpg to calibrate on.")
@repository_option
@option("--samples", type=POSITIVE, default=Quantization.samples, help="Number of images to calibrate on.")
@option("--validation", type=FILE, help="Zip file or folder to measure on; default: the rest of --data.")
@option("--max-drop", type=float, default=Quantization.max_drop, help="Largest loss of top-1, points.")
@option("--unmeasured", is_flag=True, help="Write the version without measuring its loss.")
def main(name: str, version: int | None, repository: Path, **settings: Any) -> None:
    """Quantize a model of the repository to int8, and write the result as the next version if it is good enough.

    ensemble quantize resnet --data train.zip --validation test.zip --repository models

    The command needs the `quantize` extra (NNCF), and decodes images by the server's own code. It tries both of NNCF's
    presets on the calibration images, and for a network of at least twelve layers the better preset with the first
    three layers in float. These layers stay float if that halves the distance to the float model's probabilities.
    While the answers lose more than --max-drop points, any network keeps these layers in float if that is nearer, and
    biases are corrected accurately. The command measures the chosen version on the validation images: top-1 and CPU
    time, beside the float model.

    Without --validation, the command measures on images of --data that calibration does not use, at least half of
    them. If their classes are not the model's, it compares the answers with the float model's answers. The version
    becomes the model `NAME-int8` if its interval shows a loss above --max-drop, or if it takes more CPU time here than
    the float version; a configuration must name this model. The command writes nothing if the weights did not shrink
    by half, with a tenth allowed for scales and biases: NNCF then found nothing to quantize.
    """
    print(f"wrote {describe(quantize(repository, name, version, Quantization(**settings)))}")


if __name__ == "__main__":
    main()
