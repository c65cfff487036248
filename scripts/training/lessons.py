"""What teachers have answered, kept in a file: no image is shown to them twice, in this run or in others."""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from deployments.contract.payload import Pixels, Probabilities
from scripts.errors import ScriptError

DIGEST_BYTES = 16


class Lessons:
    """Answers by the digests of the pixels, so that it does not matter how an image came about.

    It pays where few variants of an image are learnt: mirrored and shifted by whole pixels, but not cut or mixed.
    """

    def __init__(self, file: Path, teachers: Sequence[Mapping[str, Any]]) -> None:
        """Begin with what the file holds, if there is one.

        Args:
            file: `.npz`; written by `save`.
            teachers: who answers, as in a student's metadata.

        Raises:
            ScriptError: the file is of other teachers, or nothing that `save` has written.
        """
        self._file, self._teachers = file, json.dumps(list(teachers))
        self._answers: dict[bytes, Probabilities] = {}
        # How many of them the file holds.
        self._kept = 0
        if not file.exists():
            return
        try:
            with np.load(file) as saved:
                told, digests, answers = str(saved["teachers"]), saved["digests"], saved["answers"]
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as err:
            raise ScriptError(f"{file} holds no lessons: {err!r}; name another file by --lessons") from err
        if told != self._teachers:
            raise ScriptError(f"{file} is of other teachers: {told}; name another file by --lessons")
        self._answers = {digest.tobytes(): answer for digest, answer in zip(digests, answers, strict=True)}
        self._kept = len(self._answers)

    def of(self, rows: Pixels, ask: Callable[[Pixels], Probabilities]) -> Probabilities:
        """Answers to images, float [N,classes]; `ask` is called once with those that were never asked about.

        Args:
            rows: uint8 [N,H,W,3].
            ask: from such images to their answers.
        """
        digests = [hashlib.blake2b(row.tobytes(), digest_size=DIGEST_BYTES).digest() for row in rows]
        new = {digest: i for i, digest in enumerate(digests) if digest not in self._answers}
        if new:
            self._answers.update(zip(new, ask(rows[list(new.values())]), strict=True))
        return np.stack([self._answers[digest] for digest in digests])

    def save(self) -> None:
        """Write the file in the place of the one before, whole or not at all, if there is something new."""
        if len(self._answers) == self._kept:
            return
        self._file.parent.mkdir(parents=True, exist_ok=True)
        partial = self._file.with_name(f"{self._file.name}.partial.npz")
        digests = np.frombuffer(b"".join(self._answers), np.uint8).reshape(-1, DIGEST_BYTES)
        np.savez(partial, teachers=self._teachers, digests=digests, answers=np.stack(list(self._answers.values())))
        partial.replace(self._file)
        self._kept = len(self._answers)
