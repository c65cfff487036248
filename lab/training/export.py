"""Exports what `ensemble train` trained: a checkpoint becomes a version of the model repository."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openvino as ov
import torch

from deployments.repository.errors import ModelError
from deployments.repository.repository import Model
from ensemble_models.baking import bake
from ensemble_models.dataset import Dataset, truth
from ensemble_models.learnt import provenance
from ensemble_models.prediction import computed_in, predict
from ensemble_models.statistics import top1
from ensemble_models.writing import input_metadata, write_version
from lab.training.architectures import Mirrored, network

# The checkpoint's images are as large as the model's input: nothing is cut away.
CROP_RATIO = 1.0


def to_openvino(checkpoint: dict[str, Any], *, mirror: bool) -> ov.Model:
    """Convert a checkpoint of `ensemble train` to the ensemble's signature; `mirror` adds the mirrored view.

    Raises ModelError if the weights don't fit the architecture of the checkpoint's recipe.
    """
    classes, size = len(checkpoint["classes"]), checkpoint["size"]
    model = network(checkpoint["recipe"], classes)
    try:
        model.load_state_dict(checkpoint["model"])
    except RuntimeError as err:
        raise ModelError(f"the checkpoint's weights belong to another architecture: {err}") from err
    converted = ov.convert_model(
        (Mirrored(model) if mirror else model).eval(), example_input=torch.zeros(2, 3, size, size)
    )
    return bake(
        converted,
        size=(size, size),
        mean=checkpoint["mean"],
        scale=checkpoint["std"],
        channel_order="BGR",
        layout="NCHW",
    )


def export(
    checkpoint: Path,
    repository: Path,
    name: str,
    *,
    data: Path,
    validation: Dataset | None = None,
    replace: bool = False,
    mirror: bool = False,
) -> Path:
    """Write a checkpoint as version 1 of a model in float16, measured on `validation`; return the version's folder.

    The metadata names `data`, the training images. With `mirror` the model also looks at each image's mirror image.

    Raises:
        ModelError: the version exists and `replace` is false, or the checkpoint doesn't fit its recipe.
        ScriptError: the classes of `validation` are not the model's.
    """
    saved = torch.load(checkpoint, map_location="cpu", weights_only=True)
    metadata = {
        "precision": "FP16",
        "classes": saved["classes"],
        "input": input_metadata((saved["size"], saved["size"]), CROP_RATIO),
        "source": {
            "tool": "scripts.train",
            "recipe": saved["recipe"],
            "initial": saved["initial"],
            "teachers": saved["teachers"],
            "epochs": saved["epoch"],
            "mirrored": mirror,
            "mean_bgr": saved["mean"],
            "std_bgr": saved["std"],
            "data": data.name,
            "sha256": saved["data_sha256"],
            "torch": saved["torch"],
            "device": saved["device"],
            "openvino": ov.__version__,
        },
    }

    def measure(model: Model) -> dict[str, Any]:
        if validation is None:
            return {}
        labels = truth(validation, model)
        score = {"top1": top1(predict([model], validation)[0], labels), "images": len(validation)}
        return {"accuracy": {**score, "computed_in": computed_in(), **provenance(validation)}}

    return write_version(
        to_openvino(saved, mirror=mirror),
        repository,
        name,
        1,
        metadata,
        compress_to_fp16=True,
        replace=replace,
        check=measure,
    )
