"""What the head of a peer's file declares (PEP 723): its dependencies, and what a request for it is like."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import tomllib
import venv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.errors import ScriptError
from scripts.lab.benchmark.workloads import CACHE

# The same builds in a peer's environment as here.
SHARED = ("openvino", "opencv-python-headless", "numpy")


@dataclass(frozen=True)
class Form:
    """What an HTTP server wants of a request; a peer declares what differs in `[tool.benchmark]` of its head.

    Attributes:
        path: that answers.
        headers: besides what every request has.
        body: text with `BASE64` for the image; None for the image as it is.
    """

    path: str = "/classify"
    headers: tuple[tuple[str, str], ...] = (("Content-Type", "image/jpeg"),)
    body: str | None = None

    @classmethod
    def of(cls, declared: Mapping[str, Any]) -> Form:
        """The form of a `[tool.benchmark]` table."""
        given = dict(declared)
        if "headers" in given:
            given["headers"] = tuple(given["headers"].items())
        return cls(**given)


# The image as the body.
AS_IT_IS = Form()


def head(file: Path) -> dict[str, Any]:
    """What a script's head declares (PEP 723); empty if it has none."""
    lines = file.read_text(encoding="utf-8").splitlines()
    if "# /// script" not in lines:
        return {}
    begin = lines.index("# /// script") + 1
    return tomllib.loads("\n".join(line[2:] for line in lines[begin : lines.index("# ///", begin)]))


def python_of(file: Path) -> str:
    """The Python of a peer: one with the dependencies that its head declares (PEP 723), else this one.

    Raises:
        ScriptError: they can't be installed.
    """
    declared = head(file)
    if not declared:
        return sys.executable
    folder = (CACHE / "environments" / file.stem).resolve()
    python = folder / "bin" / "python"
    # A version that the peer asks for itself wins.
    wanted = [
        f"{name}=={importlib.metadata.version(name)}" if name in SHARED else name for name in declared["dependencies"]
    ]
    # What is in it, once it is complete: made anew when that changes.
    complete = folder / "requirements.txt"
    if not complete.exists() or complete.read_text(encoding="utf-8").splitlines() != wanted:
        print(f"installing {file.stem} into {folder}", flush=True)
        venv.create(folder, clear=True, with_pip=True)
        command = [str(python), "-m", "pip", "install", "--quiet", *wanted]
        if subprocess.run(command).returncode != 0:  # noqa: S603
            raise ScriptError(f"{file.stem} could not be installed; leave it out by --systems")
        complete.write_text("\n".join(wanted), encoding="utf-8")
    return str(python)
