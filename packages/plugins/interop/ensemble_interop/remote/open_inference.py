"""Members on a server that speaks the Open Inference Protocol (KServe v2): Triton, MLServer, KServe or this one.

Sources: https://github.com/kserve/open-inference-protocol, and Triton's extension for binary tensor data.
"""

import secrets
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal
from urllib.parse import quote

import msgspec
import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from deployments.contract.payload import Images
from ensemble_interop.remote.calls import JSON, GrpcConnection, HttpConnection, parse
from ensemble_interop.remote.client import InvalidResponse, Output, Unavailable
from ensemble_interop.remote.config import RemoteConfig
from ensemble_interop.remote.member import RemoteKind
from ensemble_interop.remote.tensors import FLOATS, Binding, Content, ModelMetadata, Tensor
from ensemble_serving.protocol import inference_pb2 as pb

# The extents of an output that are read: one more than numpy takes is enough to be refused. And the outputs among which
# the wanted one is.
READ_DIMENSIONS, MOST_OUTPUTS = 65, 1024


class OpenInferenceGrpc(GrpcConnection):
    """Calls one endpoint of a server."""

    service = "inference.GRPCInferenceService"

    async def describe(self, timeout_s: float) -> ModelMetadata:
        """See `Connection.describe`."""
        model = {"name": self._config.model_name, "version": self._config.version or ""}
        ready = await self._call("ModelReady", pb.ModelReadyRequest(**model), pb.ModelReadyResponse, timeout_s)
        if not ready.ready:
            raise Unavailable(f"its model {self._config.model_name!r} is not ready")
        request = pb.ModelMetadataRequest(**model)
        described = await self._call("ModelMetadata", request, pb.ModelMetadataResponse, timeout_s)
        inputs, outputs = (
            [Tensor(each.name, each.datatype, tuple(each.shape)) for each in tensors]
            for tensors in (described.inputs, described.outputs)
        )
        return ModelMetadata(inputs, outputs, self._config.version or highest(described.versions))

    async def infer(self, binding: Binding, images: Images, headers: Mapping[str, str], timeout_s: float) -> Output:
        """See `Connection.infer`."""
        request = infer_message(self._config.model_name, [binding.content(images)], [binding.output])
        request.model_version = self._config.version or ""
        response = await self._call("ModelInfer", request, pb.ModelInferResponse, timeout_s, headers)
        return Output(_values_of(response, binding.output), response.model_version)


def highest(versions: Sequence[str]) -> str:
    """Return the highest of a model's versions, which are numbers or names; empty if there is none."""
    return max(
        versions, key=lambda version: (version.isdecimal(), int(version) if version.isdecimal() else 0), default=""
    )


def infer_message(model: str, tensors: Sequence[Content], outputs: Sequence[str] = ()) -> pb.ModelInferRequest:
    """Make an infer request for a model's outputs of these names, none for all."""
    request = pb.ModelInferRequest(
        model_name=model, id=secrets.token_hex(4), outputs=[{"name": each} for each in outputs]
    )
    for tensor in tensors:
        request.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        request.raw_input_contents.append(tensor.raw)
    return request


def output_array(datatype: str, shape: Sequence[int], raw: bytes, numbers: Sequence[Any]) -> NDArray[Any]:
    """Make the array of an output, of its raw bytes or else of its numbers.

    Raises:
        InvalidResponse: they are no floating-point numbers, or not as many as the shape says.
    """
    if datatype not in FLOATS:
        raise InvalidResponse(f"the output has the data type {datatype}; a floating-point type was expected")
    try:
        values = np.frombuffer(raw, FLOATS[datatype]) if raw else np.array(numbers, np.float64)
        return values.reshape(tuple(shape[:READ_DIMENSIONS]))
    except (ValueError, TypeError, OverflowError) as err:
        raise InvalidResponse(f"the output does not have its declared shape {list(shape[:8])}") from err


def no_output(names: Iterable[str], wanted: str) -> InvalidResponse:
    """Make the error of a response without the wanted output."""
    return InvalidResponse(f"the response has the outputs {sorted(names)[:8]}; {wanted!r} was expected")


def _values_of(response: pb.ModelInferResponse, wanted: str) -> NDArray[Any]:
    # One was asked for.
    names = [output.name for output in response.outputs[:MOST_OUTPUTS]]
    if wanted not in names:
        raise no_output(names, wanted)
    position = names.index(wanted)
    output, raw = response.outputs[position], response.raw_output_contents[position : position + 1]
    numbers = output.contents.fp64_contents or output.contents.fp32_contents
    return output_array(output.datatype, output.shape, b"".join(raw), numbers)


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


class OpenInferenceHttp(HttpConnection):
    """Calls one endpoint of a server."""

    def __init__(self, config: RemoteConfig, ip: str, max_scores: int) -> None:
        super().__init__(config, ip, max_scores)
        version = f"/versions/{config.version}" if config.version else ""
        self._path = f"/v2/models/{quote(config.model_name, safe='')}{version}"
        self._is_binary = False

    async def describe(self, timeout_s: float) -> ModelMetadata:
        """See `Connection.describe`."""
        body = (await self._call(f"{self._path}/ready", timeout_s)).body
        # Triton's response has no body.
        if body.strip() and not parse(body, _Ready).ready:
            raise Unavailable(f"its model {self._config.model_name!r} is not ready")
        self._is_binary = BINARY in parse((await self._call("/v2", timeout_s)).body, _Server).extensions
        model = parse((await self._call(self._path, timeout_s)).body, _Model)
        return ModelMetadata(model.inputs, model.outputs, self._config.version or highest(model.versions or []))

    async def infer(self, binding: Binding, images: Images, headers: Mapping[str, str], timeout_s: float) -> Output:
        """See `Connection.infer`."""
        made, sent = infer_body([binding.content(images)], [binding.output], is_binary=self._is_binary)
        response = await self._call(f"{self._path}/infer", timeout_s, made, {**headers, **sent})
        return _output(response.header(HEADER), response.body, binding.output, self._most_values)


def infer_body(
    tensors: Sequence[Content], outputs: Sequence[str] = (), *, is_binary: bool
) -> tuple[bytes, dict[str, str]]:
    """Encode the body of an infer request for some outputs, none for all; return it with its headers.

    Args:
        tensors: the inputs.
        outputs: their names.
        is_binary: whether tensors follow the JSON as bytes, in both directions.
    """
    # KServe's server fails on a request without an id.
    head: dict[str, Any] = {"id": secrets.token_hex(4)}
    if outputs:
        head["outputs"] = [{"name": name} for name in outputs]
    if not is_binary:
        return msgspec.json.encode({**head, "inputs": [_described(each) | _listed(each) for each in tensors]}), JSON
    raw = [each.raw for each in tensors]
    sizes = [{"parameters": {"binary_data_size": len(each)}} for each in raw]
    inputs = [_described(tensor) | size for tensor, size in zip(tensors, sizes, strict=True)]
    json = msgspec.json.encode({**head, "inputs": inputs, "parameters": {"binary_data_output": True}})
    headers = {"content-type": "application/octet-stream", HEADER: str(len(json))}
    return b"".join([json, *raw]), headers


def _described(tensor: Content) -> dict[str, Any]:
    return {"name": tensor.name, "datatype": tensor.datatype, "shape": tensor.shape}


def _listed(tensor: Content) -> dict[str, Any]:
    """Return the values of a tensor as JSON has them."""
    if isinstance(tensor.values, np.ndarray):
        return {"data": tensor.values.ravel().tolist()}
    return {"parameters": {"content_type": "base64"}, "data": [b64encode(each).decode() for each in tensor.values]}


def _output(header: str | None, body: bytes, wanted: str, most: int) -> Output:
    """Read an output of a response: in the JSON of at most so many values, or behind it, whose size the header has."""
    offset = len(body) if header is None or not header.isdecimal() else int(header)
    response = parse(body[:offset], _Response, most)
    for output in response.outputs:
        size = (output.parameters or {}).get("binary_data_size", 0)
        end = offset + (size if isinstance(size, int) and size > 0 else 0)
        if output.name == wanted:
            raw = body[offset:end]
            numbers = [] if raw else parse(bytes(output.data), list[Any], most)
            return Output(output_array(output.datatype, output.shape, raw, numbers), response.model_version or "")
        offset = end
    raise no_output((output.name for output in response.outputs), wanted)


class OpenInference(RemoteKind):
    """A model on another server, called by REST or gRPC according to its URL."""

    over_grpc, over_http = OpenInferenceGrpc, OpenInferenceHttp
    kind: Literal["open_inference"] = Field(description="the Open Inference Protocol")
