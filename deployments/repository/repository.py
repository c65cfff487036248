"""The model repository: `<root>/<name>/<version>/`, any OpenVINO-readable model, the highest version served.

The layout is Triton's. A version folder holds one model file and, when `ensemble prepare` or `ensemble quantize`
made it, a `metadata.json` with classes, input size and the SHA-256 of each file, verified before loading.
`ensemble_models.writing` writes versions.
"""

import hashlib
import json
import os
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from deployments.folder_permissions import changeable_by_others
from deployments.repository.errors import ModelError
from deployments.repository.labels import class_names, read_labels

# The bundled models, beside the packages.
DEFAULT_ROOT = Path(__file__).resolve().parents[2] / "models"
METADATA = "metadata.json"
LABELS = "labels.txt"
# Beside a model's versions: the numbers of those that were rolled back, a number a line, and why behind it.
ROLLED_BACK = "rolled-back.txt"
# The name of a model, a member or a deployment.
NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]*$"
MAX_NAME_LENGTH = 64
# The name of a version's folder, a positive number, as Triton takes it.
VERSION = re.compile("[1-9][0-9]{0,9}")
MODEL_FILES = ("*.xml", "*.onnx", "*.tflite", "*.pdmodel", "saved_model.pb")
# The files of a version: their names and sizes, and a tag that changes with the content.
Stamp = tuple[tuple[str, int, int | str], ...]


class Entries(msgspec.Struct):
    """The entries of `metadata.json` whose types are checked as it is read; others may stand beside them."""

    classes: list[str] = []
    sha256: dict[str, str] = {}


def user_cache(name: str) -> Path:
    """Return a folder of this application in the user's cache folder; the folder is made.

    Raises:
        OSError: the folder can't be made, or other users could change its files.
    """
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ensemble-serving" / name
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if (shared := changeable_by_others(folder)) is not None:
        raise PermissionError(f"other users can change {shared}")
    return folder


@dataclass(frozen=True)
class Model:
    """One version of one model on disk.

    Attributes:
        name: the model's name, the folder below the repository's root.
        version: a positive integer.
        path: what OpenVINO reads: the IR's .xml, .onnx, .tflite or .pdmodel, or the SavedModel's folder.
        metadata: the content of `metadata.json`, empty if there is none.
    """

    name: str
    version: int
    path: Path
    metadata: dict[str, Any]

    @property
    def folder(self) -> Path:
        """The version's folder."""
        return self.path if self.path.is_dir() else self.path.parent

    @property
    def labels(self) -> tuple[str, ...] | None:
        """The class names in order of index: from `metadata.json`, else `labels.txt` (a name a line), else None.

        Raises:
            ModelError: see `class_names` and `read_labels`.
        """
        if "classes" in self.metadata:
            return class_names(self.metadata["classes"], self.folder / METADATA)
        file = self.folder / LABELS
        return read_labels(file) if file.is_file() else None

    @property
    def input(self) -> dict[str, Any]:
        """The entry `input` of `metadata.json`, which describes the pixels: `height`, `crop_ratio` and so on."""
        return self._entry("input")

    @property
    def source(self) -> dict[str, Any]:
        """The entry `source` of `metadata.json`: how `ensemble` made the model; empty for one from elsewhere."""
        return self._entry("source")

    @property
    def variant_of(self) -> int:
        """The version that it was quantized or calibrated from; of any other version, its own number."""
        # Earlier releases wrote the number only into the source of a quantized version.
        number = self.metadata.get("variant_of", self.source.get("version"))
        return number if isinstance(number, int) else self.version

    def _entry(self, name: str) -> dict[str, Any]:
        described = self.metadata.get(name, {})
        return described if isinstance(described, dict) else {}

    def provenance(self) -> dict[str, Any]:
        """Return name, version and SHA-256 of the weights, for the metadata of a model that is made of this one."""
        return {"name": self.name, "version": self.version, "sha256": sha256(self.path.with_suffix(".bin"))}

    def verify(self) -> None:
        """Compare each file with its SHA-256 in `metadata.json`, if there is one.

        Raises:
            ModelError: a file is missing or differs.
        """
        for name, expected in self.metadata.get("sha256", {}).items():
            file = self.folder / name
            if not file.is_file():
                raise ModelError(f"model {self.name!r} version {self.version}: {file} is missing")
            if sha256(file) != expected:
                raise ModelError(
                    f"model {self.name!r} version {self.version}: {name} does not match the SHA-256 in {METADATA}; "
                    "restore the file, or prepare the model again"
                )


def sha256(file: Path) -> str:
    """Compute the hexadecimal SHA-256 of a file."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def digests(folder: Path) -> dict[str, str]:
    """Compute the hexadecimal SHA-256 of each file in a folder, by its path from there, sorted."""
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    return {file.relative_to(folder).as_posix(): sha256(file) for file in files}


def versions(root: Path, name: str) -> list[int]:
    """List the versions of a model, ascending; empty if there is no such model."""
    folder = root / name
    if not folder.is_dir():
        return []
    return sorted(int(entry.name) for entry in folder.iterdir() if VERSION.fullmatch(entry.name) and entry.is_dir())


def rolled_back(root: Path, name: str) -> dict[int, str]:
    """Read which versions of a model were rolled back, and why; empty if none was."""
    try:
        lines = (root / name / ROLLED_BACK).read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    entries = (line.partition(" ") for line in lines)
    return {int(number): why for number, _, why in entries if VERSION.fullmatch(number)}


def remember_rollback(root: Path, name: str, version: int, why: str) -> None:
    """Note that a version was rolled back, so that "the highest version" is another one; raises OSError."""
    if version not in rolled_back(root, name):
        with (root / name / ROLLED_BACK).open("a", encoding="utf-8") as stream:
            stream.write(f"{version} {' '.join(why.split())}\n")


def find(root: Path, name: str, version: int | None = None) -> Model:
    """Find a model; without a version, the highest that was not rolled back.

    Raises:
        ModelError: no such folder, model or version, no model file in it, or malformed metadata.
    """
    available = versions(root, name)
    if not available:
        if not root.is_dir():
            raise ModelError(f"there is no folder {root.absolute()}, in which model {name!r} would be")
        known = sorted(entry.name for entry in root.iterdir() if versions(root, entry.name))
        raise ModelError(f"no model {name!r} in the repository {root}; it has {known or 'none'}")
    kept = set(available) - rolled_back(root, name).keys()
    chosen = max(kept, default=None) if version is None else version
    if chosen is None:
        raise ModelError(
            f"every version of model {name!r} was rolled back; name one, or edit {root / name / ROLLED_BACK}"
        )
    if chosen not in available:
        raise ModelError(f"model {name!r} has no version {chosen}; it has {available}")
    return read(name, chosen, root / name / str(chosen))


def read(name: str, version: int, folder: Path) -> Model:
    """Read the model in a version's folder; raises ModelError as `find` does."""
    return Model(name, version, _model_file(folder), _read_metadata(folder))


class Repository(ABC):
    """Models by name and version.

    Attributes:
        poll_interval_s: how often to look for new versions, seconds.
        is_atomic: whether every version that it lists is complete; in a folder, one may be being written.
    """

    poll_interval_s: float
    is_atomic: bool

    @abstractmethod
    def versions(self, name: str) -> list[int]:
        """List the versions of a model, ascending; empty if there is no such model."""

    def rolled_back(self, name: str) -> dict[int, str]:
        """Return the versions of a model that were rolled back, and why; only a folder remembers them."""
        return {}

    def variants(self, name: str, version: int) -> list[Model]:
        """Find a version, and the versions that were quantized or calibrated from it, ascending.

        Raises:
            ModelError: one of them is damaged.
        """
        every = (self.find(name, each) for each in self.versions(name) if each not in self.rolled_back(name))
        return [model for model in every if version in {model.version, model.variant_of}]

    @abstractmethod
    def stamp(self, name: str, version: int) -> Stamp:
        """Return what changes with the files of a version; empty while files of it are being replaced."""

    @abstractmethod
    def find(self, name: str, version: int | None = None) -> Model:
        """Find a model on this machine's disk; without a version, the highest; raises ModelError if there is none."""


class Folder(Repository):
    """A repository on this machine's disk."""

    poll_interval_s = 2.0
    is_atomic = False

    def __init__(self, root: Path) -> None:
        self._root = root

    def versions(self, name: str) -> list[int]:
        """See `versions`."""
        return versions(self._root, name)

    def rolled_back(self, name: str) -> dict[int, str]:
        """See `rolled_back`."""
        return rolled_back(self._root, name)

    def stamp(self, name: str, version: int) -> Stamp:
        """See `Repository.stamp`."""
        try:
            files = [(file, file.stat()) for file in sorted((self._root / name / str(version)).rglob("*"))]
        except OSError:
            return ()
        return tuple((str(file), status.st_size, status.st_mtime_ns) for file, status in files)

    def find(self, name: str, version: int | None = None) -> Model:
        """See `find`."""
        return find(self._root, name, version)


def _model_file(folder: Path) -> Path:
    files = [file for pattern in MODEL_FILES for file in folder.glob(pattern)]
    if len(files) != 1:
        raise ModelError(
            f"{folder} must hold exactly one model ({', '.join(MODEL_FILES)}); found {[f.name for f in files]}"
        )
    return folder if files[0].name == "saved_model.pb" else files[0]


def _read_metadata(folder: Path) -> dict[str, Any]:
    file = folder / METADATA
    if not file.is_file():
        return {}
    try:
        metadata: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        msgspec.convert(metadata, Entries)
    except (ValueError, msgspec.ValidationError, RecursionError) as err:
        raise ModelError(f"{file} is no JSON object that describes a model: {err}") from err
    return metadata
