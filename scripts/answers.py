"""A CSV file of answers that a later run continues, and what became of the images of this one."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from scripts.errors import ScriptError

COLUMNS = ("path", "label", "index", "probability", "missing", "error", "message")


class AnswersFile:
    """A CSV file of `COLUMNS`: a line for each image with a final answer, which is an answer or an error.

    Attributes:
        finished: the paths of the images that an earlier run has written.
        classified: how many images this run has classified.
        failed: how many images failed in this run, by the error's code.
    """

    def __init__(self, path: Path) -> None:
        """Read what an earlier run has written; a line that it had not finished is removed.

        Raises:
            ScriptError: the file holds something else.
        """
        self._path = path
        content = path.read_bytes() if path.exists() else b""
        complete = content[: content.rfind(b"\n") + 1]
        rows = csv.DictReader(io.StringIO(complete.decode("utf-8", "surrogateescape"), newline=""))
        if content and tuple(rows.fieldnames or ()) != COLUMNS:
            raise ScriptError(f"{path} was not written by this command; name another file by --output")
        self.finished = {row["path"] for row in rows}
        self.classified, self.failed = 0, Counter[str]()
        # By the error's code, how its first image is reported.
        self._examples: dict[str, str] = {}
        if len(complete) < len(content):
            path.write_bytes(complete)

    @contextmanager
    def open(self) -> Iterator[Self]:
        """Open the file for `note`."""
        with self._path.open("a", newline="", encoding="utf-8", errors="surrogateescape") as self._stream:
            self._rows = csv.DictWriter(self._stream, COLUMNS)
            if self._stream.tell() == 0:
                self._rows.writeheader()
            yield self

    def note(self, path: Path, answer: dict[str, Any]) -> None:
        """Count an answer or an error, and write it if it is final."""
        if (error := answer.get("error")) is None:
            self.classified += 1
            missing = " ".join(f"{name}:{code}" for name, code in (answer.get("missing") or {}).items())
            row = {"path": path, "missing": missing, **{name: answer.get(name, "") for name in COLUMNS[1:4]}}
        else:
            code, again = str(error["code"]), "; run the command again for these" if error.get("temporary") else ""
            self.failed[code] += 1
            self._examples.setdefault(code, f"{path}: {error['message']}{again}")
            row = {} if again else {"path": path, "error": code, "message": error["message"]}
        if row:
            self._rows.writerow(row)
            self._stream.flush()

    def report(self, images: int) -> Iterator[str]:
        """Report the outcome of `images` images in words."""
        before = images - self.classified - self.failed.total()
        earlier = f"; {before} were finished before" if before else ""
        yield f"{self.classified} images classified, {self.failed.total()} failed{earlier}"
        for code, count in self.failed.most_common():
            yield f"  {code}: {count}, such as {self._examples[code]}"


def images(paths: Iterable[Path]) -> list[Path]:
    """List the files, and every file of the folders, in order.

    Raises:
        ScriptError: there is no such file or folder, or no file in the folders.
    """
    found: list[Path] = []
    for path in paths:
        if not path.exists():
            raise ScriptError(f"there is no {path}")
        found += sorted(each for each in path.rglob("*") if each.is_file()) if path.is_dir() else [path]
    if not found:
        raise ScriptError("there is no file in the folders that were named")
    return found
