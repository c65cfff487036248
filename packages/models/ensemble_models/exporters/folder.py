"""Finds the model of a folder, and what exporters wrote about it in the model and beside it."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openvino as ov

from deployments.repository.errors import ModelError
from ensemble_models.exporters import forms, network, tflite
from ensemble_models.exporters.facts import Description, Fact
from ensemble_models.exporters.names import documents, read_names, read_text

MODELS = (".onnx", ".tflite", ".pdmodel", ".xml")
SAVED_MODEL = "saved_model.pb"
# What to do about files that OpenVINO can't read, by their suffix.
ADVICE = {
    ".json": "if it is PaddlePaddle's, save it with FLAGS_enable_pir_api=0 in the environment, which makes a .pdmodel",
    ".mar": "TorchServe's archive holds code; export its model as ONNX, then name that file",
    **dict.fromkeys((".keras", ".h5"), "save it by Keras' model.export(FOLDER), which makes a SavedModel"),
    **dict.fromkeys((".pkl", ".pickle", ".joblib"), "a pickle holds code; export the model as ONNX"),
    **dict.fromkeys(
        (".pt", ".pt2", ".pth", ".ckpt", ".bin", ".safetensors"),
        "PyTorch's own files run or evaluate what is in them, or lack the network; export it as ONNX: "
        "torch.onnx.export(model.eval(), torch.zeros(1, 3, HEIGHT, WIDTH), 'model.onnx')",
    ),
}
# Exporters put a model into such folders, and its description beside them.
INNER = frozenset({"onnx", "openvino", "data", "model", "tf_model"})
MLMODEL = "MLmodel"
DESCRIPTIONS = ("metadata.yaml", "config.json", "preprocessor_config.json")
TRANSFORMS = "transforms.txt"
# Names of a model that several folders have; the folder's is taken instead.
GENERAL = frozenset({"model", "openvino_model", "best", "last", "saved_model", "classifier", "model_quantized"})
LABELS = re.compile(
    r"(class(es)?|labels?|names|categories|synsets?)([_-]?(names?|labels?|index|indices|list|map|to_idx))?"
    r"\.(txt|json|ya?ml|csv|tsv|names)|(imagenet_class_index|id2label|label2id|label_?map)\.json"
)


def model_in(path: Path) -> Path:
    """Return the model that a path means: itself, or the one model in a folder, perhaps one folder deeper.

    Raises:
        ModelError: there is none, or several, or a file that is not read.
    """
    if not path.is_dir():
        check_read(path)
        return path
    if (path / SAVED_MODEL).is_file():
        return path
    if (file := path / MLMODEL).is_file():
        return _of_mlflow(file)
    found = models_in(path)
    if len(found) > 1:
        some = ", ".join(str(file.relative_to(path)) for file in found[:4])
        raise ModelError(f"{path} has {len(found)} models ({some}); name one of the files")
    if not found:
        for file in sorted(path.glob("*")):
            if file.suffix != ".json":
                check_read(file)
        raise ModelError(f"{path} has no model ({', '.join(MODELS)}, or {SAVED_MODEL})")
    return found[0]


def check_read(file: Path) -> None:
    """Raise ModelError for a file that OpenVINO can't read, with what to do instead."""
    if file.suffix in ADVICE and not file.is_dir():
        raise ModelError(f"{file} is not read: {ADVICE[file.suffix]}")


def models_in(path: Path) -> list[Path]:
    """List the models in a folder or, if there is none, one folder deeper."""
    for pattern in ("*", "*/*"):
        files = [file for file in sorted(path.glob(pattern)) if not file.name.startswith(".")]
        found = [file for file in files if file.suffix in MODELS]
        if found := [*found, *(file.parent for file in files if file.name == SAVED_MODEL)]:
            return found
    return []


def default_name(path: Path) -> str:
    """Name a model by its file, or by its folder if the file's name is a general one."""
    parent = path.resolve().parent
    stem = path.name if path.is_dir() else path.stem
    name = stem if stem not in GENERAL else (parent.parent if parent.name in INNER else parent).name
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", name).lstrip("-_.") or stem


def facts(path: Path, read: ov.Model) -> Iterator[Fact]:
    """Collect what a model and the files beside it state; `path` is the model's, and `read` the model.

    Raises:
        ModelError: a description is damaged, or it describes no classifier of images.
        OSError: a file can't be read.
    """
    folders = [path.parent, *([path.parent.parent] if path.parent.name in INNER else [])]
    if path.is_dir():
        folders.insert(0, path)
    beside = [folder / name for folder in folders for name in DESCRIPTIONS]
    for file in beside:
        if file.is_file():
            yield from forms.read(Description(file.name, _fields(file)))
    if path.suffix == ".tflite":
        if (said := tflite.ultralytics(path)) is not None:
            yield from forms.read(said)
        is_quantized = network.takes_bytes(read)
        yield from (fact for fact in tflite.metadata(path) if not (is_quantized and fact.name in {"mean", "std"}))
    yield from forms.read(network.properties(read, path.name))
    for file in (folder / TRANSFORMS for folder in folders):
        if file.is_file():
            yield from forms.transforms(read_text(file), file.name)
    for folder in folders:
        yield from _labels(folder, path)
    inside = list(network.first_operations(read))
    yield from inside
    if inside and (path.is_dir() or path.suffix == ".tflite"):
        yield Fact("order", "RGB", "what loads images for TensorFlow and Keras: red first")


def _labels(folder: Path, path: Path) -> Iterator[Fact]:
    """Read the files of labels in a folder; a file that begins with the model's name is only for this model."""
    files = [file for file in sorted(folder.iterdir()) if file.is_file()]
    own = [file for file in files if LABELS.fullmatch(file.name.removeprefix(path.stem).lstrip("._-").lower())]
    for file in [file for file in own if file.name.startswith(path.stem)] or own:
        yield Fact("labels", read_names(file), file.name)


def _fields(file: Path) -> dict[str, Any]:
    """Read a JSON or YAML file as a mapping."""
    return next((each for each in documents(file) if isinstance(each, dict)), {})


def _of_mlflow(file: Path) -> Path:
    """Return the ONNX file that MLflow's `MLmodel` names."""
    flavors = _fields(file).get("flavors")
    flavor = flavors.get("onnx") if isinstance(flavors, dict) else None
    if not isinstance(flavor, dict):
        names = ", ".join(map(str, flavors or ()))
        raise ModelError(f"{file} has no flavor onnx, only {names}; log the model by mlflow.onnx.log_model")
    found = (file.parent / str(flavor.get("data", "model.onnx"))).resolve()
    if not found.is_relative_to(file.parent.resolve()) or not found.exists():
        raise ModelError(f"{file} names {flavor.get('data')}, which is not in its folder")
    return model_in(found)
