"""Labelled images in a zip file or a folder, `<class>/<name>.jpg`, decoded by the code that serves them."""

from __future__ import annotations

import hashlib
import lzma
import os
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path, PurePosixPath

from deployments.contract.errors import EnsembleError
from deployments.contract.payload import Pixels
from deployments.contract.preprocessing import Preprocessing
from deployments.repository.repository import sha256
from deployments.transformer import decoding
from deployments.transformer.transformer import TransformerSettings
from scripts.errors import DatasetError, ScriptError

SUFFIXES = frozenset({".jpg", ".jpeg", ".png"})
LIMITS = TransformerSettings()


@dataclass(frozen=True)
class Dataset:
    """Labelled images.

    Attributes:
        path: the zip file or folder.
        names: of the images, `<class>/<file>`, sorted.
        part: which of the images in `path` these are.
    """

    path: Path
    names: tuple[str, ...]
    part: str = "all"

    @classmethod
    def open(cls, path: Path) -> Dataset:
        """List the images of a zip file or a folder.

        Raises:
            DatasetError: there is no `<class>/*.jpg` (or .jpeg, .png) in `path`, or it is a damaged zip file.
        """
        if path.is_dir():
            entries = [file.relative_to(path).as_posix() for file in path.rglob("*")]
        elif path.is_file() and zipfile.is_zipfile(path):
            try:
                with zipfile.ZipFile(path) as archive:
                    entries = archive.namelist()
            except zipfile.BadZipFile as err:
                raise DatasetError(f"{path}: {err}") from err
        else:
            raise DatasetError(f"{path} is neither a folder nor a zip file of <class>/*.jpg")
        names = sorted(name for name in entries if _is_labelled_image(PurePosixPath(name)))
        if not names:
            raise DatasetError(f"{path} holds no <class>/*.jpg")
        return cls(path, tuple(names))

    def __len__(self) -> int:
        """Count the images."""
        return len(self.names)

    @property
    def classes(self) -> tuple[str, ...]:
        """The class names, sorted."""
        return tuple(sorted({label(name) for name in self.names}))

    @cached_property
    def sha256(self) -> str:
        """The hexadecimal SHA-256 of the zip file; of a folder, that of its images' names and contents.

        Raises:
            DatasetError: see `read`.
        """
        if self.path.is_file():
            return sha256(self.path)
        every, digest = Dataset.open(self.path), hashlib.sha256()
        for name, (encoded, _) in zip(every.names, every.read(), strict=True):
            digest.update(f"{name}\0{hashlib.sha256(encoded).hexdigest()}\n".encode())
        return digest.hexdigest()

    def hold_out(self, count: int) -> tuple[Dataset, Dataset | None]:
        """Split into all images but `count` of them, and those, or None if `count` is 0.

        Those are the same wherever the data are: they are chosen by the SHA-256 of their names.

        Raises:
            DatasetError: there are no more than `count` images.
        """
        if count == 0:
            return self, None
        if count >= len(self):
            raise DatasetError(f"{self.path} has {len(self)} images; {count} can't be held out")
        held = frozenset(sorted(self.names, key=lambda name: hashlib.sha256(name.encode()).digest())[:count])
        learnt = tuple(name for name in self.names if name not in held)
        return (
            replace(self, names=learnt, part=f"all but the {count} held out"),
            replace(self, names=tuple(sorted(held)), part=f"the {count} held out"),
        )

    def held_out(self, count: int | None) -> Dataset:
        """Select the `count` images that `hold_out` leaves out; all if that is 0 or None."""
        return self.hold_out(count or 0)[1] or self

    def read(self) -> Iterator[tuple[bytes, str]]:
        """Yield each image's encoded bytes and its class name, in the order of `names`.

        Raises:
            DatasetError: an image can't be read, or in a zip file is encrypted, damaged or packed unusually.
        """
        if self.path.is_dir():
            yield from self._each(lambda name: (self.path / name).read_bytes())
        else:
            with zipfile.ZipFile(self.path) as archive:
                yield from self._each(archive.read)

    def _each(self, read: Callable[[str], bytes]) -> Iterator[tuple[bytes, str]]:
        for name in self.names:
            try:
                encoded = read(name)
            except (OSError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error, lzma.LZMAError) as err:
                raise DatasetError(f"{self.path}: {name}: {err}") from err
            yield encoded, label(name)


def default_data() -> Path | None:
    """Return the path of CIFAR-10's test set in the folder of the environment variable ENSEMBLE_DATA, if it is set."""
    root = os.environ.get("ENSEMBLE_DATA")
    return Path(root) / "cifar10" / "test.zip" if root else None


def label(name: str) -> str:
    """Return the class of an image: the name of the folder it is in."""
    return PurePosixPath(name).parent.name


def folder_name(label: str) -> str:
    """Name the folder of a class: no folder's name has a slash, so an underscore stands for it."""
    return label.replace("/", "_")


def index_of_folders(labels: Sequence[str]) -> dict[str, int]:
    """Map the folder of each class to the class' position; raise ScriptError if two classes have one folder."""
    index: dict[str, int] = {}
    for position, each in enumerate(labels):
        other = index.setdefault(folder_name(each), position)
        if other != position:
            raise ScriptError(same_folder(labels[other], each))
    return index


def same_folder(first: str, second: str) -> str:
    """Say that two classes have one folder."""
    return (
        f"the classes {first!r} and {second!r} have one folder, {folder_name(first)!r}; `ensemble labels` renames one"
    )


def check_image(name: str, encoded: bytes) -> None:
    """Raise ScriptError, with its name, for what the server would not take for an image."""
    try:
        decoding.read_header(encoded, LIMITS)
    except EnsembleError as err:
        raise ScriptError(f"{name}: {err}") from err


def decode(name: str, encoded: bytes, wanted: Sequence[Preprocessing]) -> list[Pixels]:
    """Decode an image once, as the server does; raises ScriptError, with its name.

    Returns:
        For each preprocessing the pixels, uint8 BGR [height,width,3].
    """
    try:
        return list(decoding.decode(encoded, decoding.read_header(encoded, LIMITS), wanted).pixels)
    except EnsembleError as err:
        raise ScriptError(f"{name}: {err}") from err


def _is_labelled_image(name: PurePosixPath) -> bool:
    # macOS and Jupyter leave folders and files beside the images that look like them.
    hidden = any(part.startswith(".") or part == "__MACOSX" for part in name.parts)
    return name.suffix.lower() in SUFFIXES and bool(label(str(name))) and not hidden
