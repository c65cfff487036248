"""Writes versions into the model repository, each completely or not at all."""

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

import openvino as ov

from deployments.contract.preprocessing import Preprocessing
from deployments.repository.errors import ModelError
from deployments.repository.repository import MAX_NAME_LENGTH, METADATA, NAME, Model, digests, versions

MODEL = "model.xml"
WEIGHTS = "model.bin"


def write_metadata(folder: Path, metadata: dict[str, Any]) -> None:
    """Write `metadata.json` with the SHA-256 of every other file in the folder."""
    others = {path: digest for path, digest in digests(folder).items() if PurePosixPath(path).name != METADATA}
    text = json.dumps({**metadata, "sha256": others}, indent=2, ensure_ascii=False)
    (folder / METADATA).write_text(text + "\n", encoding="utf-8")


def input_metadata(size: tuple[int, int], crop_ratio: float) -> dict[str, Any]:
    """Write the entry `input` of `metadata.json` for a model of `bake`."""
    return {
        "height": size[0],
        "width": size[1],
        "crop_ratio": crop_ratio,
        "layout": "NHWC",
        "color": "BGR",
        "type": "uint8",
    }


def derived_metadata(source: Model, precision: str, wanted: Preprocessing) -> dict[str, Any]:
    """Collect the metadata of a variant, a version that is made of another one: its precision, classes and input."""
    return {
        "precision": precision,
        "variant_of": source.variant_of,
        **({"classes": list(source.labels)} if source.labels else {}),
        "input": {**input_metadata(wanted.size, wanted.crop_ratio), **source.input},
    }


def check_name(name: str) -> None:
    """Raise ModelError for a name that a configuration could not have."""
    if not re.fullmatch(NAME, name) or len(name) > MAX_NAME_LENGTH:
        raise ModelError(
            f"--name {name!r}: use at most {MAX_NAME_LENGTH} letters, digits, dots, dashes and underscores"
        )


def model_names(root: Path) -> list[str]:
    """List the models of a repository; none if there is no such folder."""
    return sorted(each.name for each in root.iterdir() if versions(root, each.name)) if root.is_dir() else []


def check_free(repository: Path, name: str, version: int, hint: str = "choose another name or version") -> None:
    """Raise ModelError if that version exists."""
    if version in versions(repository, name):
        raise ModelError(f"model {name!r} has a version {version} in {repository} already; {hint}")


def write_version(
    network: ov.Model,
    repository: Path,
    name: str,
    version: int | None,
    metadata: dict[str, Any],
    *,
    compress_to_fp16: bool,
    replace: bool = False,
    check: Callable[[Model], dict[str, Any]] | None = None,
) -> Path:
    """Write a version of a model into the repository, completely or not at all.

    Args:
        network: a model of `bake`.
        repository: the root, `<root>/<name>/<version>/`; made if it isn't there.
        name: the model's name.
        version: the version's number; None for the next free one.
        metadata: the content of `metadata.json` besides `name`, `version` and `sha256`.
        compress_to_fp16: store float32 weights as float16.
        replace: whether an existing version is replaced.
        check: is called with the written files before they are served, and returns more metadata; if it raises,
            nothing is written.

    Returns:
        The version's folder.

    Raises:
        ModelError: the version exists and `replace` is false.
    """
    number = max([0, *versions(repository, name)]) + 1 if version is None else version
    if not replace:
        check_free(repository, name, number)
    target = repository / name / str(number)
    # On the file system of the target, so that it can be renamed; its name is no number, so that nobody serves it.
    staged = target.with_name(f".{number}.{os.getpid()}.partial")
    content = {"name": name, "version": number, **metadata}
    try:
        staged.mkdir(parents=True)
        ov.save_model(network, staged / MODEL, compress_to_fp16=compress_to_fp16)
        if check is not None:
            content |= check(Model(name, number, staged / MODEL, content))
        write_metadata(staged, content)
        if replace and target.exists():
            _swap(staged, target)
        else:
            staged.rename(target)
    except OSError as err:
        raise ModelError(f"can't write version {number} of {name!r} to {repository}: {err}") from err
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    return target


def describe(folder: Path) -> str:
    """Describe a version that was written: its folder, the size of its weights, and where it is in force, and when."""
    name, number = folder.parent.name, folder.name
    size = f"{(folder / WEIGHTS).stat().st_size / 1e3:,.0f} kB of weights, {METADATA} beside them"
    return (
        f"{folder} ({size})\nin force: a member of model {name} without `version` serves version {number} from its "
        f"next start or `ensemble deploy`, with `version_policy: latest` within seconds; another one needs "
        f"`version: {number}`"
    )


def _swap(staged: Path, target: Path) -> None:
    retired = staged.with_suffix(".retired")
    target.rename(retired)
    try:
        staged.rename(target)
    except OSError:
        retired.rename(target)
        raise
    shutil.rmtree(retired)
