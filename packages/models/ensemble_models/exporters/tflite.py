"""Reads the metadata of a TFLite file: a FlatBuffer in the model, and files in a zip archive behind it.

Fields are numbered as `schema.fbs` of TensorFlow Lite and `metadata_schema.fbs` of tflite-support number them.
"""

from __future__ import annotations

import json
import struct
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from deployments.repository.errors import ModelError
from ensemble_models.exporters.facts import Description, Fact, numbers, scaling
from ensemble_models.exporters.names import MOST_BYTES, names_in

# Of a model: its buffers and its metadata, each with a name and the number of a buffer.
BUFFERS, METADATA, NAME, NUMBER, DATA = 4, 6, 0, 1, 0
# Of the metadata: subgraphs, their tensors, a tensor's processes and files.
SUBGRAPHS, INPUTS, OUTPUTS, PROCESSES, FILES = 3, 2, 3, 4, 6
# Of a process: its kind, and its options with mean and std; of a file: its kind.
KIND, OPTIONS, NORMALIZATION, MEAN, STD, FILE_KIND, AXIS_LABELS = 0, 1, 1, 0, 1, 2, 2
MOST_ENTRIES = 100_000


@dataclass(frozen=True)
class Table:
    """A table of a FlatBuffer at a position; whatever lies outside of the file raises struct.error."""

    content: bytes
    position: int = 0

    def follow(self, place: int) -> Table:
        """Return the table that an offset refers to; a FlatBuffer begins with one."""
        return Table(self.content, place + self._read("<I", place))

    def number(self, field: int, form: str) -> int:
        """Return a number; 0 if it is absent."""
        place = self._place(field)
        return 0 if place is None else self._read(form, place)

    def tables(self, field: int) -> list[Table]:
        """Return the tables of a vector."""
        start, count = self._vector(field)
        return [self.follow(place) for place in range(start, start + 4 * min(count, MOST_ENTRIES), 4)]

    def table(self, field: int) -> Table:
        """Return the table that a field refers to; an empty one if it is absent."""
        place = self._place(field)
        return Table(bytes(8)) if place is None else self.follow(place)

    def bytes(self, field: int, size: int = 1) -> bytes:
        """Return the bytes of a text, or of a vector of numbers of so many bytes each."""
        start, count = self._vector(field)
        return self.content[start : start + size * count]

    def _read(self, form: str, place: int) -> int:
        return int(struct.unpack_from(form, self.content, place)[0])

    def _place(self, field: int) -> int | None:
        fields = self.position - self._read("<i", self.position)
        where = 4 + 2 * field
        offset = self._read("<H", fields + where) if where < self._read("<H", fields) else 0
        return self.position + offset if offset else None

    def _vector(self, field: int) -> tuple[int, int]:
        if (place := self._place(field)) is None:
            return 0, 0
        start = self.follow(place).position
        return start + 4, self._read("<I", start)


def metadata(path: Path) -> Iterator[Fact]:
    """Read labels and normalization of a TFLite file.

    Raises:
        ModelError: its metadata are damaged.
    """
    try:
        yield from _facts(Table(path.read_bytes()).follow(0), path)
    except (struct.error, zipfile.BadZipFile, ValueError) as err:
        raise ModelError(f"the metadata of {path} are damaged: {err}") from err


def ultralytics(path: Path) -> Description | None:
    """Return what Ultralytics wrote behind a TFLite file, if it did."""
    content = _attached(path, "metadata.json") if zipfile.is_zipfile(path) else None
    fields: Any = None if content is None else json.loads(content)
    return Description(f"metadata.json in {path.name}", fields) if isinstance(fields, dict) else None


def _facts(model: Table, path: Path) -> Iterator[Fact]:
    found = [each for each in model.tables(METADATA) if each.bytes(NAME) == b"TFLITE_METADATA"]
    buffers = model.tables(BUFFERS)
    numbers_of = [number for each in found if (number := each.number(NUMBER, "<I")) < len(buffers)]
    for graph in [
        graph for number in numbers_of for graph in Table(buffers[number].bytes(DATA)).follow(0).tables(SUBGRAPHS)
    ][:1]:
        for unit in [unit for tensor in graph.tables(INPUTS)[:1] for unit in tensor.tables(PROCESSES)]:
            if unit.number(KIND, "<B") == NORMALIZATION:
                options = unit.table(OPTIONS)
                mean, std = (numbers(np.frombuffer(options.bytes(field, 4), "<f4").tolist()) for field in (MEAN, STD))
                yield from scaling(1.0, mean, std, f"{path.name}: NormalizationOptions")
        for file in [file for tensor in graph.tables(OUTPUTS)[:1] for file in tensor.tables(FILES)]:
            name = file.bytes(NAME).decode()
            if file.number(FILE_KIND, "<b") == AXIS_LABELS and (content := _attached(path, name)) is not None:
                yield Fact("labels", names_in(content, Path(name)), f"{path.name}: {name}")


def _attached(path: Path, name: str) -> bytes | None:
    """Read a file of the archive behind a model; None if there is none of the name, or a larger one than is read."""
    with zipfile.ZipFile(path) as archive:
        small = {each.filename for each in archive.infolist() if each.file_size <= MOST_BYTES}
        return archive.read(name) if name in small else None
