"""The images that a model was trained on, calibrated on or quantized with: they cannot judge the model."""

from __future__ import annotations

from typing import Any

from deployments.repository.errors import ModelError
from deployments.repository.repository import Model, find
from ensemble_models.dataset import Dataset
from scripts.errors import ScriptError

# Fewer images tell too little of how sure a model should be.
FEWEST = 500
# What a quantized model is called that is no version of the float one.
ASIDE = "-int8"


def provenance(dataset: Dataset) -> dict[str, Any]:
    """Describe the dataset for `metadata.json`: its name, its part, and its SHA-256."""
    return {"data": dataset.path.name, "part": dataset.part, "sha256": dataset.sha256}


def check_unseen(model: Model, images: Dataset) -> None:
    """Raise ScriptError if a model was trained on some of the images; print a line if that is unknown."""
    if (left_out := images_left_out(model, images)) is None:
        print(f"the metadata of {model.name!r} do not show whether it was trained on these images; it must not be")
    elif _has_learnt(images, left_out):
        hint = f"name --hold-out {left_out}" if left_out >= FEWEST else "name other images, or train with --hold-out"
        raise ScriptError(
            f"{model.name!r} was trained on {images.path.name} with --hold-out {left_out}, so it has learnt some of "
            f"these {len(images)} images, of which it is too sure; {hint}"
        )


def _has_learnt(images: Dataset, left_out: int) -> bool:
    learnt, _ = Dataset.open(images.path).hold_out(left_out)
    return not set(learnt.names).isdisjoint(images.names)


def used_for(model: Model, images: Dataset) -> str:
    """Return what a model used these data for: `trained on`, `calibrated on` or `quantized with`; empty for nothing."""
    if (left_out := images_left_out(model, images)) is not None and _has_learnt(images, left_out):
        return "trained on"
    records = {"calibrated on": model.metadata.get("calibration"), "quantized with": model.source}
    digests = {use: each["sha256"] for use, each in records.items() if isinstance(each, dict) and "sha256" in each}
    return next((use for use, digest in digests.items() if digest == images.sha256), "")


def images_left_out(model: Model, images: Dataset) -> int | None:
    """Count the images that all training on these data left out; None if the metadata show no such training."""
    source, seen = model.source, {(model.name, model.version)}
    while source.get("tool") == "scripts.quantize":
        # A model that became one of its own is called as the float one, and more.
        name = source.get("model", model.name.removesuffix(ASIDE))
        try:
            found = find(model.folder.parents[1], name, source.get("version"))
        except ModelError:
            return None
        if (found.name, found.version) in seen:
            return None
        source, seen = found.source, {*seen, (found.name, found.version)}
    if source.get("tool") != "scripts.train":
        return None
    left_out = list[int]()
    run: dict[str, Any] | None = source
    while run:
        # Earlier releases recorded no digest of the data of a run that another began with: it had the same.
        if run.get("data_sha256", source.get("sha256")) == images.sha256:
            left_out.append(run["recipe"].get("hold_out", 0))
        run = run.get("initial")
    return min(left_out, default=None)
