"""Recognizes files that are no models, such as web pages, by their first bytes."""

import re
import zipfile
from pathlib import Path

EXPORT = "export the model as ONNX, as torch.onnx.export(model.eval(), torch.zeros(1, 3, HEIGHT, WIDTH), 'model.onnx')"
BEGINNINGS = {
    "a Git LFS pointer, and not the file itself: run `git lfs pull`": re.compile(rb"version https://git-lfs"),
    "a web page, as a download leaves that failed: download the file itself": re.compile(
        rb"\s*<(!doctype html|html)", re.IGNORECASE
    ),
    "a pickle, as PyTorch's, which runs code when it is read: " + EXPORT: re.compile(rb"\x80[\x02-\x05]"),
    "a HDF5 file, as Keras': save it by model.export(FOLDER), which makes a SavedModel": re.compile(rb"\x89HDF"),
    "a compressed archive: unpack it, and name the model in it": re.compile(rb"\x1f\x8b|BZh|\xfd7zXZ"),
}
MOST_LOOKED_AT = 512


def no_model(file: Path) -> str:
    """Name the kind of a file that is no model, and the remedy; empty if it may be a model.

    Raises:
        OSError: it can't be read.
    """
    with file.open("rb") as stream:
        beginning = stream.read(MOST_LOOKED_AT)
    if not beginning:
        return "empty: copy or download it again"
    if beginning.startswith(b"PK\3\4"):
        return _archive(file)
    return next((what for what, start in BEGINNINGS.items() if start.match(beginning)), "")


def _archive(file: Path) -> str:
    try:
        with zipfile.ZipFile(file) as archive:
            names = archive.namelist()
    except zipfile.BadZipFile:
        return "a truncated zip file: copy or download it again"
    if any(name.endswith(("data.pkl", ".pt2", "archive_format")) for name in names):
        return f"PyTorch's own file, which runs code when it is read: {EXPORT}"
    if "model.weights.h5" in names:
        return "Keras' own file: save it by model.export(FOLDER), which makes a SavedModel"
    return "a zip file: unpack it, and name the model in it"
