"""Calibrates a model of the repository: its probabilities come to mean the share of answers that are right.

    ensemble calibrate resnet --data train.zip --hold-out 5000 --repository models

A temperature is fitted to labelled images that the model was not trained on (Guo et al. 2017, arXiv:1706.04599), and is
put into the model, at its end. It changes no answer, only how probable it is. The calibrated model is written as the
next version, or with --replace in place of the version that it is made of. Quantize before you calibrate: `quantize`
leaves a temperature out, and an int8 version gets its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from deployments.contract.payload import Probabilities
from deployments.repository.errors import ModelError
from deployments.repository.network import load, precision, with_softmax, with_temperature
from deployments.repository.repository import Model, find
from deployments.repository.writing import write_version
from scripts.dataset import Dataset
from scripts.errors import ScriptError, at_least_zero
from scripts.evaluate.accuracy import Truth, computed_in, predict, provenance, top1, truth
from scripts.evaluate.calibration import calibration_error, log_loss, temperature
from scripts.evaluate.candidates import preprocessing
from scripts.evaluate.unseen import FEWEST, check_unseen
from scripts.flags import flag
from scripts.prepare.derived import command, kept
from scripts.prepare.preparation import answers_probabilities

# Answers may differ where two classes are as near: rounding in bfloat16 depends on how a batch is split.
NEAR_TIE = 0.1


@dataclass(frozen=True)
class Calibration:
    """What to fit to, and where the calibrated model goes.

    Attributes:
        data: labelled images, a zip file or folder of `<class>/*.jpg`.
    """

    data: Path
    hold_out: int = flag(
        0,
        "fit to these many images of --data, which `ensemble train --hold-out` leaves out (default: 0, all images)",
        type=at_least_zero,
    )
    replace: bool = flag(False, "write it in place of the version that it is made of", action="store_true")


def calibrate(repository: Path, name: str, version: int | None, settings: Calibration) -> Path:
    """Write a calibrated version of a model's version, None for the highest; returns its folder.

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
    if settings.replace and model.path.suffix != ".xml":
        raise ModelError(f"{model.path} would be lost, as calibrated models are in OpenVINO's format; omit --replace")
    images = Dataset.open(settings.data)
    held_out = images.held_out(settings.hold_out)
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
        **kept(model, precision(model), wanted),
    }
    number = model.version if settings.replace else None
    network = load(model)
    # As the server gives one to it.
    if not answers_probabilities(network, wanted.size):
        network = with_softmax(network)
    network = with_temperature(network, found)
    # Weights in float16 stay so, and the temperature is not rounded to it.
    return write_version(
        network, repository, name, number, metadata, compress_to_fp16=False, replace=settings.replace, check=measure
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


def main() -> None:
    """Parse the command line and calibrate."""
    of, data = "version to calibrate (default: the highest)", "zip or folder of <class>/*.jpg to fit to"
    command(__doc__, Calibration, calibrate, of=of, data=data)


if __name__ == "__main__":
    main()
