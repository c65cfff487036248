"""What the head of a peer's file declares (PEP 723): its dependencies, and what a request for it is like."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import tomllib
import venv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ensemble_capacity.load.protocols import Classify
from ensemble_capacity.load.tensors import Input, OpenInference
from lab.benchmark.workloads import CACHE
from scripts.errors import ScriptError

# The same builds in a peer's environment as here.
SHARED = ("openvino", "opencv-python-headless", "numpy")


# The image as the body.
AS_IT_IS = Classify()


def form(declared: Mapping[str, Any]) -> Classify:
    """Make an HTTP server's form of a request, by its head's `[tool.benchmark]` table; by default the image itself.

    Its fields are `path`, `headers`, and `body`, a text with `BASE64` for the image.
    """
    given = dict(declared)
    if "headers" in given:
        given["headers"] = tuple((name.lower(), value) for name, value in given["headers"].items())
    return Classify(**given)


def grpc_form(shape: Sequence[int] = (1,)) -> OpenInference:
    """Make the gRPC request form of a server of the Open Inference Protocol, whose input `image` has this shape."""
    image = Input("image", "BYTES", (-1, *shape[1:]))
    return OpenInference("ensemble", is_grpc=True, shapes={}, inputs=(image,))


def head(file: Path) -> dict[str, Any]:
    """Read what a script's head declares (PEP 723); empty if it has none."""
    lines = file.read_text(encoding="utf-8").splitlines()
    if "# /// script" not in lines:
        return {}
    begin = lines.index("# /// script") + 1
    return tomllib.loads("\n".join(line[2:] for line in lines[begin : lines.index("# ///", begin)]))


def python_of(file: Path) -> str:
    """Return the Python of a peer: one with the dependencies that its head declares (PEP 723), else this one.

    Raises:
        ScriptError: they can't be installed.
    """
    declared = head(file)
    if not declared.get("dependencies"):
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
