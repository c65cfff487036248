"""A client of the Open Inference Protocol by REST; tensors travel as bytes if the server has that extension.

Sources: https://github.com/kserve/open-inference-protocol, and Triton's extension for binary tensor data.
"""

from __future__ import annotations

import secrets
from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

import msgspec
import numpy as np
from numpy.typing import NDArray

from deployments.contract.payload import Images
from ensemble_remote.calls import JSON, HttpConnection, parse
from ensemble_remote.client import InvalidResponse, Output, Unavailable
from ensemble_remote.config import RemoteConfig
from ensemble_remote.open_inference_grpc import check_datatype, highest
from ensemble_remote.tensors import FLOATS, Binding, Content, ModelMetadata, Tensor

BINARY = "binary_tensor_data"
HEADER = "inference-header-content-length"


class _Output(Tensor, frozen=True):
    data: msgspec.Raw = msgspec.Raw(b"")
    parameters: dict[str, Any] | None = None


class _Model(msgspec.Struct):
    inputs: list[Tensor]
    outputs: list[Tensor]
    versions: list[str] | None = None


class _Server(msgspec.Struct):
    extensions: list[str] = []


class _Ready(msgspec.Struct):
    ready: bool = True


class _Response(msgspec.Struct):
    outputs: list[_Output]
    model_version: str | None = None


READY, MODEL, SERVER, RESPONSE = (msgspec.json.Decoder(kind).decode for kind in (_Ready, _Model, _Server, _Response))
NUMBERS = msgspec.json.Decoder(list[Any]).decode


class OpenInferenceHttp(HttpConnection):
    """Calls one endpoint of a server."""

    def __init__(self, config: RemoteConfig, ip: str, max_scores: int) -> None:
        super().__init__(config, ip, max_scores)
        version = f"/versions/{config.version}" if config.version else ""
        self._path = f"/v2/models/{quote(config.model_name, safe='')}{version}"
        self._is_binary = False

    async def describe(self, timeout_s: float) -> ModelMetadata:
        """See `Client.describe`."""
        body = (await self._call(f"{self._path}/ready", timeout_s)).body
        # Triton's response has no body.
        if body.strip() and not parse(body, READY).ready:
            raise Unavailable(f"its model {self._config.model_name!r} is not ready")
        self._is_binary = BINARY in parse((await self._call("/v2", timeout_s)).body, SERVER).extensions
        model = parse((await self._call(self._path, timeout_s)).body, MODEL)
        return ModelMetadata(model.inputs, model.outputs, self._config.version or highest(model.versions or []))

    async def infer(self, binding: Binding, images: Images, headers: Mapping[str, str], timeout_s: float) -> Output:
        """See `Client.infer`."""
        made, sent = infer_body([binding.content(images)], [binding.output], is_binary=self._is_binary)
        response = await self._call(f"{self._path}/infer", timeout_s, made, {**headers, **sent})
        return _output(response.header(HEADER), response.body, binding)


def infer_body(
    tensors: Sequence[Content], outputs: Sequence[str] = (), *, is_binary: bool
) -> tuple[bytes, dict[str, str]]:
    """Encode the body of an infer request for some outputs, none for all; return it with its headers.

    Args:
        tensors: the inputs.
        outputs: their names.
        is_binary: whether tensors follow the JSON as bytes, in both directions.
    """
    raw = [each.raw for each in tensors] if is_binary else []
    inputs = [_sized(*each) for each in zip(tensors, raw, strict=True)] if is_binary else list(map(_listed, tensors))
    # KServe's server fails on a request without an id.
    head: dict[str, Any] = {"id": secrets.token_hex(4), "inputs": inputs}
    if outputs:
        head["outputs"] = [{"name": name} for name in outputs]
    if not is_binary:
        return msgspec.json.encode(head), JSON
    json = msgspec.json.encode({**head, "parameters": {"binary_data_output": True}})
    headers = {"content-type": "application/octet-stream", HEADER: str(len(json))}
    return b"".join([json, *raw]), headers


def _described(tensor: Content) -> dict[str, Any]:
    return {"name": tensor.name, "datatype": tensor.datatype, "shape": tensor.shape}


def _sized(tensor: Content, raw: bytes) -> dict[str, Any]:
    """Describe a tensor whose bytes follow the JSON."""
    return {**_described(tensor), "parameters": {"binary_data_size": len(raw)}}


def _listed(tensor: Content) -> dict[str, Any]:
    """Describe a tensor with its values."""
    head = _described(tensor)
    if isinstance(tensor.values, np.ndarray):
        return {**head, "data": tensor.values.ravel().tolist()}
    return {
        **head,
        "parameters": {"content_type": "base64"},
        "data": [b64encode(each).decode() for each in tensor.values],
    }


def _output(header: str | None, body: bytes, binding: Binding) -> Output:
    """Read the output of a response: in the JSON, or behind the JSON, whose size the header has."""
    offset = len(body) if header is None or not header.isdecimal() else int(header)
    response = parse(body[:offset], RESPONSE)
    for output in response.outputs:
        size = (output.parameters or {}).get("binary_data_size", 0)
        end = offset + (size if isinstance(size, int) and size > 0 else 0)
        if output.name == binding.output:
            return Output(_values(output, body[offset:end]), response.model_version or "")
        offset = end
    names = [output.name for output in response.outputs]
    raise InvalidResponse(f"the response has the outputs {names}; {binding.output!r} was expected")


def _values(output: _Output, content: bytes) -> NDArray[Any]:
    check_datatype(output.datatype)
    try:
        if content:
            return np.frombuffer(content, FLOATS[output.datatype]).reshape(output.shape)
        return np.array(parse(bytes(output.data), NUMBERS), np.float64).reshape(output.shape)
    except (ValueError, TypeError) as err:
        raise InvalidResponse(f"the output does not have its declared shape {list(output.shape)[:8]}") from err
