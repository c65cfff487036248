"""The Open Inference Protocol by REST, as a client; tensors go as bytes where the server has that extension.

Sources: https://github.com/kserve/open-inference-protocol, and Triton's extension for binary tensor data.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

import msgspec
import numpy as np
from numpy.typing import NDArray

from deployments.remote.credentials import Token
from deployments.remote.failures import Nonsense, Unreachable
from deployments.remote.http import Http, decoded
from deployments.remote.open_inference_grpc import bytes_shape, raw
from deployments.remote.server import Answered
from deployments.remote.settings import RemoteConfig
from deployments.remote.tensors import FLOATS, Described, Fit, Tensor, highest

BINARY = "binary_tensor_data"
HEADER = "inference-header-content-length"


class _Tensor(msgspec.Struct):
    name: str
    datatype: str
    shape: list[int]


class _Model(msgspec.Struct):
    inputs: list[_Tensor]
    outputs: list[_Tensor]
    versions: list[str] | None = None


class _Server(msgspec.Struct):
    extensions: list[str] = []


class _Ready(msgspec.Struct):
    ready: bool = True


class _Output(msgspec.Struct):
    name: str
    datatype: str
    shape: list[int]
    data: msgspec.Raw = msgspec.Raw(b"")
    parameters: dict[str, Any] | None = None


class _Answer(msgspec.Struct):
    outputs: list[_Output]
    model_version: str | None = None


READY, MODEL, SERVER, ANSWER = (msgspec.json.Decoder(kind).decode for kind in (_Ready, _Model, _Server, _Answer))
NUMBERS = msgspec.json.Decoder(list[Any]).decode


class OpenInferenceHttp:
    """One address of a server."""

    def __init__(self, config: RemoteConfig, where: str, token: Token, scores: int) -> None:
        """Set the IP address, the token, and the most scores that an answer holds."""
        self._http = Http(config, where, token)
        self._config = config
        version = f"/versions/{config.version}" if config.version else ""
        self._path = f"/v2/models/{quote(config.model_name, safe='')}{version}"
        self._scores = scores
        self._binary = False

    async def describe(self, timeout_s: float) -> Described:
        """See `Server.describe`."""
        _, body = await self._http.get(f"{self._path}/ready", timeout_s)
        # Triton's has no content.
        if body.strip() and not decoded(body, READY).ready:
            raise Unreachable(f"its model {self._config.model_name!r} is not ready")
        _, body = await self._http.get("/v2", timeout_s)
        self._binary = BINARY in decoded(body, SERVER).extensions
        _, body = await self._http.get(self._path, timeout_s)
        told = decoded(body, MODEL)
        inputs, outputs = (
            [Tensor(each.name, each.datatype, tuple(each.shape)) for each in tensors]
            for tensors in (told.inputs, told.outputs)
        )
        return Described(inputs, outputs, self._config.version or highest(told.versions or []))

    async def infer(
        self, how: Fit, images: NDArray[Any] | Sequence[bytes], headers: Mapping[str, str], timeout_s: float
    ) -> Answered:
        """See `Server.infer`."""
        tensor: dict[str, Any] = {"name": how.input.name, "datatype": how.input.datatype}
        wanted: dict[str, Any] = {"name": how.output}
        sent = {"content-type": "application/json", **headers}
        content = b""
        if self._binary:
            tensor["shape"], content = raw(how, images)
            tensor["parameters"] = {"binary_data_size": len(content)}
            wanted["parameters"] = {"binary_data": True}
        elif isinstance(images, np.ndarray):
            tensor |= {"shape": list(images.shape), "data": images.ravel().tolist()}
        else:
            tensor |= {"shape": bytes_shape(how, len(images)), "parameters": {"content_type": "base64"}}
            tensor["data"] = [base64.b64encode(image).decode() for image in images]
        # KServe's server fails on a request without an id.
        head = msgspec.json.encode({"id": secrets.token_hex(4), "inputs": [tensor], "outputs": [wanted]})
        if self._binary:
            sent |= {"content-type": "application/octet-stream", HEADER: str(len(head))}
        told, body = await self._http.post(f"{self._path}/infer", head + content, sent, timeout_s, self._scores)
        return _scores(told.get(HEADER), body, how)

    async def close(self) -> None:
        """See `Server.close`."""
        await self._http.close()


def _scores(header: str | None, body: bytes, how: Fit) -> Answered:
    size = len(body) if header is None or not header.isdecimal() else int(header)
    answer = decoded(body[:size], ANSWER)
    offset = size
    for output in answer.outputs:
        told = (output.parameters or {}).get("binary_data_size", 0)
        length = told if isinstance(told, int) and told > 0 else 0
        if output.name == how.output:
            return _values(output, body[offset : offset + length]), answer.model_version or ""
        offset += length
    raise Nonsense(f"it answered {[output.name for output in answer.outputs]} and not {how.output!r}")


def _values(output: _Output, content: bytes) -> NDArray[Any]:
    if output.datatype not in FLOATS:
        raise Nonsense(f"it answered {output.datatype}, no floating point")
    try:
        if content:
            return np.frombuffer(content, FLOATS[output.datatype]).reshape(output.shape)
        return np.array(decoded(bytes(output.data), NUMBERS), np.float64).reshape(output.shape)
    except (ValueError, TypeError) as err:
        raise Nonsense(f"its answer is not of the shape that it tells, {output.shape[:8]}") from err
