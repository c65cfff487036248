"""A peer: its declaration in peers.yaml, the form of its requests, and a Python with its dependencies."""

from __future__ import annotations

import base64
import importlib.metadata
import subprocess
import sys
import venv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import yaml

from ensemble_capacity.load.protocols import Classify, RequestBuilder
from ensemble_capacity.load.tensors import OpenInference
from ensemble_interop.remote.tensors import Tensor
from ensemble_serving.transports import Request
from lab.benchmark.workloads import CACHE
from scripts.errors import ScriptError

# The same builds in a peer's environment as here.
SHARED = ("openvino", "opencv-python-headless", "numpy")
PEERS = Path(__file__).resolve().parent / "peers"
# On the path of every peer.
SHARED_CODE = PEERS / "shared"
DECLARED: dict[str, dict[str, Any]] = yaml.safe_load((PEERS / "peers.yaml").read_text(encoding="utf-8"))


def grpc_form(shape: Sequence[int] = (1,)) -> OpenInference:
    """Make the gRPC request form of a server of the Open Inference Protocol, whose input `image` has this shape."""
    image = Tensor("image", "BYTES", (-1, *shape[1:]))
    return OpenInference("ensemble", is_grpc=True, shapes={}, inputs=(image,))


@dataclass(frozen=True)
class Posted(Classify):
    """An image as the body of a request, or in one.

    Attributes:
        headers: instead of the image's content type.
        body: a text that has the image in base64 for `BASE64`; None for the image as it is.
    """

    headers: tuple[tuple[str, str], ...] | None = None
    body: str | None = None

    def request(self, images: Sequence[bytes]) -> Request:
        """See `RequestBuilder.request`."""
        plain = super().request(images)
        body = plain.body
        if self.body is not None:
            body = self.body.replace("BASE64", base64.b64encode(body).decode()).encode()
        return Request(self.path, body, plain.headers if self.headers is None else self.headers)


class TorchServe(RequestBuilder):
    """TorchServe's own gRPC: a message `PredictionsRequest` with one input, `data`, for each image."""

    name: ClassVar[str] = "torchserve"

    def request(self, images: Sequence[bytes]) -> Request:
        """See `RequestBuilder.request`."""
        [image] = images
        entry = field(1, b"data") + field(2, image)
        message = field(1, b"ensemble") + field(3, entry)
        return Request("/org.pytorch.serve.grpc.inference.InferenceAPIsService/Predictions", message)


def varint(number: int) -> bytes:
    """Encode a number as protobuf does."""
    return bytes([number & 127 | 128]) + varint(number >> 7) if number > 127 else bytes([number])


def field(number: int, content: bytes) -> bytes:
    """Encode a field of a protobuf message that has a length: a text, a message, or packed numbers."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def python_of(name: str) -> str:
    """Return the Python of a peer: this one for a peer without dependencies, else one that has them.

    Raises ScriptError if they can't be installed.
    """
    dependencies = DECLARED[name].get("dependencies")
    if not dependencies:
        return sys.executable
    folder = (CACHE / "environments" / name).resolve()
    python = folder / "bin" / "python"
    # A version that the peer asks for itself wins.
    wanted = [f"{each}=={importlib.metadata.version(each)}" if each in SHARED else each for each in dependencies]
    # Names the content once it is complete; another content is installed anew.
    complete = folder / "requirements.txt"
    if not complete.exists() or complete.read_text(encoding="utf-8").splitlines() != wanted:
        print(f"installing {name} into {folder}", flush=True)
        venv.create(folder, clear=True, with_pip=True)
        command = [str(python), "-m", "pip", "install", "--quiet", *wanted]
        if subprocess.run(command).returncode != 0:  # noqa: S603
            raise ScriptError(f"{name} could not be installed; leave it out by --systems")
        complete.write_text("\n".join(wanted), encoding="utf-8")
    return str(python)
