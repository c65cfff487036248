"""The head of a peer's file (PEP 723): the peer's dependencies, and the form of its requests."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import tomllib
import venv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from ensemble_capacity.load.protocols import Classify
from ensemble_capacity.load.tensors import OpenInference
from ensemble_remote.tensors import Tensor
from ensemble_serving.transports import Request, Transport
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
    image = Tensor("image", "BYTES", (-1, *shape[1:]))
    return OpenInference("ensemble", is_grpc=True, shapes={}, inputs=(image,))


@dataclass(frozen=True)
class TorchServe:
    """TorchServe's own gRPC: a message `PredictionsRequest` with one input, `data`, for each image."""

    name: ClassVar[str] = "torchserve"

    async def described(self, transport: Transport, url: str, key: str, ca_file: Path | None = None) -> TorchServe:
        """See `Protocol.described`; the model is not described."""
        return self

    def request(self, images: Sequence[bytes]) -> Request:
        """See `Protocol.request`."""
        [image] = images
        entry = _field(1, b"data") + _field(2, image)
        message = _field(1, b"ensemble") + _field(3, entry)
        return Request("/org.pytorch.serve.grpc.inference.InferenceAPIsService/Predictions", message)

    def seen(self, body: bytes, label: str) -> int:
        """See `Protocol.seen`; no label is known."""
        return 0


def _field(number: int, content: bytes) -> bytes:
    """Write a field of a Protobuf message whose content has a length."""
    length, left = b"", len(content)
    while left > 127:
        length, left = length + bytes([left & 127 | 128]), left >> 7
    return bytes([number << 3 | 2]) + length + bytes([left]) + content


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
