"""Calibrates models: each probability then equals the share of right answers."""

from pathlib import Path
from typing import Any

import click
import numpy as np

from deployments.contract.payload import Probabilities
from deployments.repository.errors import ModelError
from deployments.repository.heads import with_head
from deployments.repository.network import load
from deployments.repository.repository import Model, find
from ensemble_models.baking import with_temperature
from ensemble_models.dataset import Dataset, truth
from ensemble_models.learnt import FEWEST, check_unseen, provenance
from ensemble_models.options import COUNT, FILE, POSITIVE, Command, option, repository_option
from ensemble_models.prediction import computed_in, head_of, precision, predict, preprocessing
from ensemble_models.statistics import Truth, calibration_error, log_loss, temperature, top1
from ensemble_models.writing import derived_metadata, describe, write_version
from scripts.errors import ScriptError

# Answers may differ where two classes are as near: rounding in bfloat16 depends on how a batch is split.
NEAR_TIE = 0.1


def calibrate(
    repository: Path, name: str, version: int | None, data: Path, hold_out: int = 0, replace: bool = False
) -> Path:
    """Write a calibrated version of a model's version, None for the highest; returns its folder.

    Args:
        repository: the root, `<root>/<name>/<version>/`.
        name: the model's name.
        version: the version's number.
        data: labelled images, a zip file or folder of `<class>/*.jpg`.
        hold_out: how many images of `data`, which training left out, are taken; 0 for all images.
        replace: whether the calibrated version takes the place of the version that it is made of.

    Raises:
        ModelError: the model is calibrated already, is of another format and would be replaced, or can't be written.
        ScriptError: the images are few, were learnt or have other classes, or no temperature fits them.
        DatasetError: the path holds no labelled images, or no more than would be held out.
    """
    model = find(repository, name, version)
    if entry := model.metadata.get("calibration"):
        raise ModelError(
            f"version {model.version} of {name!r} is calibrated already, with the temperature {entry['temperature']}; "
            "name one that is not by --version"
        )
    if replace and model.path.suffix != ".xml":
        raise ModelError(f"{model.path} would be lost, as calibrated models are in OpenVINO's format; omit --replace")
    images = Dataset.open(data)
    held_out = images.held_out(hold_out)
    if len(held_out) < FEWEST:
        raise ScriptError(f"{len(held_out)} images are too few to fit a temperature to; name at least {FEWEST}")
    labels = truth(held_out, model)
    check_unseen(model, held_out)
    before = predict([model], held_out)[0]
    found, wanted = temperature(before, labels), preprocessing(model)

    def measure(written: Model) -> dict[str, Any]:
        after = predict([written], held_out)[0]
        check_same(before, after)
        print(f"fitted to {len(held_out)} images of {held_out.path.name}: temperature {found}")
        measured = {"before": figures(before, labels), "after": figures(after, labels)}
        for when, values in measured.items():
            print(
                f"  {when}: expected calibration error {values['ece']:.2f} %, log loss {values['log_loss']:.4f}, "
                f"top-1 {values['top1']:.2f} %"
            )
        fitted_to = {**provenance(held_out), "images": len(held_out), "computed_in": computed_in()}
        return {"calibration": {"temperature": found, "version": model.version, **fitted_to, **measured}}

    metadata = {
        **{key: value for key, value in model.metadata.items() if key not in {"name", "version", "sha256"}},
        **derived_metadata(model, precision(model), wanted),
    }
    number = model.version if replace else None
    network = load(model)
    # As the server gives one to it.
    network = with_temperature(with_head(network, head_of(network, wanted.size)), found)
    # Weights in float16 stay so, and the temperature is not rounded to it.
    return write_version(
        network, repository, name, number, metadata, compress_to_fp16=False, replace=replace, check=measure
    )


def check_same(before: Probabilities, after: Probabilities) -> None:
    """Raise ModelError if any answer differs, other than where two classes are as probable; both float32 [N,C]."""
    second, first = np.sort(before[before.argmax(axis=1) != after.argmax(axis=1)], axis=1)[:, -2:].T
    if differ := int((first - second > NEAR_TIE).sum()):
        raise ModelError(f"the temperature changes {differ} answers, so nothing was written; this is a bug: report it")


def figures(probabilities: Probabilities, labels: Truth) -> dict[str, float]:
    """Compute the expected calibration error and top-1, percent, and the log loss of probabilities, [N,C]."""
    answers, sure = probabilities.argmax(axis=1), probabilities.max(axis=1)
    return {
        "ece": calibration_error(sure, answers == labels),
        "log_loss": round(log_loss(probabilities, labels), 4),
        "top1": top1(probabilities, labels),
    }


@click.command("calibrate", cls=Command)
@click.argument("name")
@option("--version", type=POSITIVE, help="Version to calibrate; default: the highest.")
@option("--data", type=FILE, required=True, help="Zip file or folder of <class>/*.jpg to fit to.")
@repository_option
@option("--hold-out", type=COUNT, default=0, help="Fit to these many images of --data, which training left out.")
@option("--replace", is_flag=True, help="Replace the version instead of writing the next.")
def main(name: str, version: int | None, data: Path, repository: Path, hold_out: int, replace: bool) -> None:
    """Calibrate a model of the repository: each probability then equals the share of right answers.

    ensemble calibrate resnet --data train.zip --hold-out 5000 --repository models

    A temperature is fitted to labelled images that the model was not trained on (Guo et al. 2017, arXiv:1706.04599),
    and is put into the model, at its end. It changes no answer, only how probable it is. The calibrated model is
    written as the next version, or with --replace in place of the version that it is made of. Quantize before you
    calibrate: `quantize` leaves a temperature out, and an int8 version gets its own.
    """
    print(f"wrote {describe(calibrate(repository, name, version, data, hold_out, replace))}")


if __name__ == "__main__":
    main()
