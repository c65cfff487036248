"""Labelled images in a zip file or a folder, `<class>/<name>.jpg`, decoded by the code that serves them."""

from __future__ import annotations

import hashlib
import lzma
import os
import random
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from pathlib import Path, PurePosixPath
from typing import IO
from unicodedata import normalize

import numpy as np

from deployments.contract.errors import EnsembleError
from deployments.contract.payload import Pixels
from deployments.contract.preprocessing import Preprocessing
from deployments.repository.repository import Model, sha256
from deployments.transformer import decoding
from deployments.transformer.settings import MOST_IMAGE_BYTES, TransformerSettings
from ensemble_models.statistics import Truth
from scripts.errors import DatasetError, ScriptError

# What the server decodes; other files in the folders of classes are named.
SUFFIXES = frozenset(
    {".jpg", ".jpeg", ".jfif", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".pgm", ".ppm", ".jp2", ".avif"}
)
# Images that the server does not decode, so that they are missed.
OTHER_IMAGES = frozenset({".heic", ".heif", ".jxl", ".svg", ".raw", ".cr2", ".nef", ".dng", ".npy", ".psd"})
SETS = frozenset({"train", "training", "val", "valid", "validation", "test"})
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

        A folder inside of a zip file is named like one on disk, as `images.zip/val`.

        Raises:
            DatasetError: there is no `<class>/*.jpg` (or another format) in `path`, it is a damaged zip file, or it has
                several sets, as `train/` and `val/`.
        """
        files = entries(path)
        names = sorted(name for name in files if _is_labelled(PurePosixPath(name), SUFFIXES))
        skipped = sorted(name for name in files if _is_labelled(PurePosixPath(name), OTHER_IMAGES))
        if not names:
            raise DatasetError(f"{path} holds no <class>/*.jpg{f', only {skipped[0]} and such' if skipped else ''}")
        if lost := sorted({label(name) for name in skipped} - {label(name) for name in names}):
            raise DatasetError(f"{path}: no image of class {lost[0]!r} can be read, as {skipped[0]}; save them as JPEG")
        if skipped:
            print(f"{path}: {len(skipped)} images are skipped, because they can't be read, as {skipped[0]}")
        _check_one_set(path, names)
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
        """The hexadecimal SHA-256 of the zip file; for a folder, of its images' names and contents.

        Raises:
            DatasetError: see `read`.
        """
        archive, inside = _archive(self.path)
        if archive is not None and not inside:
            return sha256(archive)
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
        file, inside = _archive(self.path)
        if file is None:
            yield from self._each(lambda name: (self.path / name).open("rb"))
            return
        stored = _entries(file)
        with zipfile.ZipFile(file) as archive:
            yield from self._each(lambda name: archive.open(stored[inside + name]))

    def _each(self, opened: Callable[[str], IO[bytes]]) -> Iterator[tuple[bytes, str]]:
        for name in self.names:
            try:
                with opened(name) as stream:
                    # A few bytes of a zip file can't become all of the memory.
                    encoded = stream.read(MOST_IMAGE_BYTES + 1)
            except (OSError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error, lzma.LZMAError) as err:
                raise DatasetError(f"{self.path}: {name}: {err}") from err
            if len(encoded) > MOST_IMAGE_BYTES:
                raise DatasetError(f"{self.path}: {name} has more than {MOST_IMAGE_BYTES} bytes, which no server takes")
            yield encoded, label(name)


def entries(path: Path) -> list[str]:
    """List the paths in a folder or a zip file; raises DatasetError if it is neither, or damaged."""
    archive, inside = _archive(path)
    if archive is not None:
        return [name.removeprefix(inside) for name in _entries(archive) if name.startswith(inside)]
    if not path.is_dir():
        raise DatasetError(f"{path} is neither a folder nor a zip file of <class>/*.jpg")
    return [file.relative_to(path).as_posix() for file in _files(path)]


def _files(path: Path) -> Iterator[Path]:
    """List the files in a folder and its folders, each folder once, with links to folders behind the real ones."""
    seen = set[str]()
    for folder, folders, files in os.walk(path, followlinks=True):
        if (place := os.path.realpath(folder)) in seen:
            folders.clear()
            continue
        seen.add(place)
        folders.sort(key=lambda name: (os.path.islink(os.path.join(folder, name)), name))
        yield from (Path(folder, file) for file in files)


def _archive(path: Path) -> tuple[Path | None, str]:
    """Return the zip file that a path names, or leads into, and the folder in it, which ends in a slash."""
    for file in (path, *path.parents):
        if file.is_file():
            inside = path.relative_to(file).as_posix()
            return (file, "" if inside == "." else f"{inside}/") if zipfile.is_zipfile(file) else (None, "")
    return None, ""


def _entries(file: Path) -> dict[str, str]:
    """Map the paths in a zip file to the names that it has for them: Windows' programs write backslashes."""
    try:
        with zipfile.ZipFile(file) as archive:
            return {name.replace("\\", "/"): name for name in archive.namelist()}
    except zipfile.BadZipFile as err:
        raise DatasetError(f"{file}: {err}") from err


def _check_one_set(path: Path, names: Sequence[str]) -> None:
    """Raise DatasetError if several folders hold the same classes, as `train/` and `val/` do."""
    sets: dict[str, set[str]] = {}
    for name in names:
        sets.setdefault(PurePosixPath(name).parent.parent.as_posix(), set()).add(label(name))
    for first, second in combinations(sorted(sets), 2):
        if sets[first] & sets[second] or {first, second} & SETS:
            raise DatasetError(
                f"{path} holds several sets of images, {', '.join(sorted(sets))}: name one, as {path / second}; images "
                "that trained a model show too high an accuracy"
            )


def label(name: str) -> str:
    """Return the class of an image: the name of the folder it is in, whose accents macOS stores as own characters."""
    return normalize("NFC", PurePosixPath(name).parent.name)


def folder_name(label: str) -> str:
    """Name the folder of a class: no folder's name has a slash, so an underscore stands for it."""
    return normalize("NFC", label).replace("/", "_")


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


def check_image(name: str, encoded: bytes) -> decoding.Header:
    """Read the header of an image; raise ScriptError, with its name, for what the server would not take for one."""
    try:
        return decoding.read_header(encoded, LIMITS)
    except EnsembleError as err:
        raise ScriptError(f"{name}: {err}") from err


def decode(name: str, encoded: bytes, wanted: Sequence[Preprocessing]) -> list[Pixels]:
    """Decode an image once, as the server does; raises ScriptError, with its name.

    Returns:
        For each preprocessing the pixels, uint8 BGR [height,width,3].
    """
    try:
        return list(decoding.decode(encoded, check_image(name, encoded), wanted).pixels)
    except EnsembleError as err:
        raise ScriptError(f"{name}: {err}") from err


def decode_all(names: Sequence[str], encoded: Sequence[bytes], wanted: Preprocessing) -> Pixels:
    """Decode images to uint8 BGR [N,height,width,3]; see `decode`."""
    return np.stack([decode(*image, [wanted])[0] for image in zip(names, encoded, strict=True)])


def truth(dataset: Dataset, model: Model) -> Truth:
    """Find the class index of every image, int64 [N], by the model's labels.

    Raises:
        ScriptError: the model has no labels, or the dataset has classes that are none of them.
    """
    if model.labels is None:
        raise ScriptError(f"model {model.name!r} has no labels; prepare it with --labels")
    return indices(dataset, model.labels, f"model {model.name!r}")


def truth_of(models: Sequence[Model], dataset: Dataset) -> Truth:
    """Find the class of every image by the labels that all models share; raises ScriptError if they differ."""
    labels = truth(dataset, models[0])
    if other := [model.name for model in models if set(model.labels or ()) != set(models[0].labels or ())]:
        raise ScriptError(f"models {models[0].name!r} and {other[0]!r} have different labels; name one by --members")
    return labels


def indices(dataset: Dataset, labels: Sequence[str], whose: str) -> Truth:
    """Find the class index of every image, int64 [N], by the labels; see `folder_name`.

    Raises:
        ScriptError: the dataset has classes that are none of the labels, or two labels have one folder.
    """
    index = index_of_folders(labels)
    if unknown := [each for each in dataset.classes if each not in index]:
        raise ScriptError(
            f"{dataset.path} has the class {unknown[0]!r}, which is none of the {len(index)} classes of {whose} "
            f"({', '.join(labels[:3])}, ...); use images of its own classes"
        )
    return np.array([index[label(name)] for name in dataset.names], np.int64)


def sample(dataset: Dataset, count: int, seed: int = 0) -> Dataset:
    """Draw at most `count` images at random, the same ones for the same seed."""
    if count >= len(dataset):
        return dataset
    return replace(dataset, names=tuple(sorted(random.Random(seed).sample(dataset.names, count))))


def _is_labelled(name: PurePosixPath, suffixes: frozenset[str]) -> bool:
    # macOS and Jupyter leave folders and files beside the images that look like them.
    hidden = any(part.startswith(".") or part == "__MACOSX" for part in name.parts)
    return name.suffix.lower() in suffixes and bool(label(str(name))) and not hidden
