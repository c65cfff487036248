"""How images become a request: the protocols that a server may speak, and `POST /classify`."""

from __future__ import annotations

import typing
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import SplitResult

import msgspec

from ensemble_capacity.load.records import DEGRADED, FAILED, RIGHT, SHED
from ensemble_capacity.load.tensors import OPEN_INFERENCE, TENSORFLOW_SERVING, OpenInference, TensorFlowServing
from ensemble_serving.transports import Request, Transport

CLASSIFY = "classify"
NAMES = CLASSIFY, OPEN_INFERENCE, TENSORFLOW_SERVING
BOUNDARY = "ensemble-load-boundary"
MEDIA_TYPES = {b"\xff\xd8\xff": "image/jpeg", b"\x89PNG": "image/png", b"RIFF": "image/webp"}


class RequestBuilder(typing.Protocol):
    """How images become a request, by a name on the command line."""

    name: ClassVar[str]

    async def described(self, transport: Transport, url: str, key: str, ca_file: Path | None = None) -> RequestBuilder:
        """Return the same protocol, with the server's description of its model, if the requests depend on it.

        Raises:
            ScriptError: the server is not there, has no such model, or one that images can't be made for.
        """
        return self

    def request(self, images: Sequence[bytes]) -> Request:
        """Make the request that carries these encoded images.

        Raises:
            ScriptError: the model can't take them.
        """
        ...

    def seen(self, body: bytes, label: str) -> int:
        """Read the flags of a record from a successful response; the label is empty if the right one is unknown."""
        return 0


def chosen(url: SplitResult, name: str | None, model: str, shapes: dict[str, tuple[int, ...]]) -> RequestBuilder:
    """Choose the protocol of a name, or else of a URL's path; gRPC without a name is the Open Inference Protocol.

    `shapes` are of input tensors whose extents the server leaves open, without the batch, by name.

    Raises:
        ValueError: the protocol has no gRPC.
    """
    is_grpc = url.scheme.startswith("grpc")
    if name is None:
        by_path = {"v2": OPEN_INFERENCE, "v1": TENSORFLOW_SERVING}
        name = OPEN_INFERENCE if is_grpc else by_path.get(url.path.strip("/").split("/")[0], CLASSIFY)
    if name != CLASSIFY:
        kind = OpenInference if name == OPEN_INFERENCE else TensorFlowServing
        return kind(model, is_grpc, shapes)
    if is_grpc:
        raise ValueError(f"/classify is HTTP; over gRPC there are {OPEN_INFERENCE} and {TENSORFLOW_SERVING}")
    return Classify((url.path.rstrip("/") or "/classify") + (url.query and f"?{url.query}"))


class _Answer(msgspec.Struct):
    label: str = ""
    missing: dict[str, str] | None = None
    load_shed: bool | None = None
    error: Any = None


class _Response(_Answer):
    # Of each image of a form.
    results: list[_Answer] = []


_decoded = msgspec.json.Decoder(_Response).decode


@dataclass(frozen=True)
class Classify(RequestBuilder):
    """An image as the body of a request to a path."""

    name: ClassVar[str] = CLASSIFY
    path: str = "/classify"

    def request(self, images: Sequence[bytes]) -> Request:
        """Make a request of one image as the body, or of several as a form."""
        if len(images) > 1:
            return self._form(images)
        return Request(self.path, images[0], (("content-type", _media_type(images[0])),))

    def seen(self, body: bytes, label: str) -> int:
        """See `RequestBuilder.seen`."""
        try:
            response = _decoded(body)
        except msgspec.MsgspecError:
            return 0
        flags = RIGHT if label and response.label == label else 0
        for answer in response.results or [response]:
            flags |= (DEGRADED if answer.missing else 0) | (SHED if answer.load_shed else 0)
            flags |= FAILED if answer.error is not None else 0
        return flags

    def _form(self, images: Sequence[bytes]) -> Request:
        parts = [
            f'--{BOUNDARY}\r\ncontent-disposition: form-data; name="image"; filename="{number}"\r\n'
            f"content-type: {_media_type(image)}\r\n\r\n".encode()
            + image
            + b"\r\n"
            for number, image in enumerate(images)
        ]
        headers = (("content-type", f"multipart/form-data; boundary={BOUNDARY}"),)
        return Request(self.path, b"".join([*parts, f"--{BOUNDARY}--\r\n".encode()]), headers)


def _media_type(image: bytes) -> str:
    found = (kind for start, kind in MEDIA_TYPES.items() if image.startswith(start))
    return next(found, "application/octet-stream")
