"""Protocols that carry tensors: the Open Inference Protocol and TensorFlow Serving's predict API.

Sources: https://github.com/kserve/open-inference-protocol, with Triton's extension for binary tensor data, and
https://github.com/tensorflow/serving/blob/master/tensorflow/serving/g3doc/api_rest.md
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self
from urllib.parse import quote, urlsplit

import msgspec
import numpy as np
from numpy.typing import NDArray

from ensemble_serving.transports import Request, Transport
from scripts.errors import ScriptError

OPEN_INFERENCE, TENSORFLOW_SERVING = "open-inference", "tensorflow-serving"
BYTES = "BYTES"
# The name of the extension.
BINARY = b"binary_tensor_data"
INFER = "/inference.GRPCInferenceService/ModelInfer"
SIGNATURE = "serving_default"
PREDICT = "/tensorflow.serving.PredictionService/Predict"
# https://github.com/tensorflow/tensorflow/blob/master/tensorflow/core/framework/types.proto
NUMBERS = {"FP32": 1, "FP64": 2, "INT32": 3, "UINT8": 4, "BYTES": 7, "INT64": 9, "FP16": 19}
DESCRIBE_TIMEOUT_S = 10.0


class Input(NamedTuple):
    """An input as a server describes it; -1 is an open extent, and the first one counts images."""

    name: str
    datatype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Tensor:
    """The content of an input.

    Attributes:
        datatype: as the Open Inference Protocol calls it.
        shape: with the batch.
        values: encoded images where the datatype is BYTES, else an array of the shape.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    values: Sequence[bytes] | NDArray[Any]

    @property
    def raw(self) -> bytes:
        """Its bytes, little-endian; each element of BYTES follows its length."""
        if isinstance(self.values, np.ndarray):
            return self.values.tobytes()
        return b"".join(part for each in self.values for part in (len(each).to_bytes(4, "little"), each))


def filled(inputs: Iterable[Input], images: Sequence[bytes], shapes: dict[str, tuple[int, ...]]) -> list[Tensor]:
    """Fill the inputs of a request; `shapes` are of inputs whose extents are open, without the batch, by name.

    Raises:
        ScriptError: a shape or a datatype is not known, or the model takes another number of images.
    """
    return [_filled(*each, images, shapes.get(each.name)) for each in inputs]


def _filled(
    name: str, datatype: str, shape: tuple[int, ...], images: Sequence[bytes], given: tuple[int, ...] | None
) -> Tensor:
    count = len(images)
    first, rest = shape[:1], given if given is not None else shape[1:]
    if first and first[0] not in {-1, count}:
        raise ScriptError(f"--batch {count}: the model's input {name!r} takes {first[0]} at a time")
    if datatype == BYTES:
        # Some servers have a second dimension of 1.
        return Tensor(name, BYTES, (count, *(1 for _ in rest)), images)
    if min(rest, default=1) < 1:
        open_extents = ",".join(str(extent) for extent in rest)
        raise ScriptError(f"--shape: the server leaves extents of {name!r} open; give --shape {name}:{open_extents}")
    try:
        dtype = np.dtype("float16" if datatype == "FP16" else datatype.lower().replace("fp", "float"))
    except TypeError as err:
        raise ScriptError(f"--model: its input {name!r} is of {datatype}, which nothing here can be made of") from err
    if len(rest) == 3 and 3 in (rest[0], rest[2]):
        values = np.stack([_pixels(image, rest) for image in images]).astype(dtype)
    else:
        values = np.random.default_rng(0).integers(0, 2, (count, *rest)).astype(dtype)
    return Tensor(name, datatype, (count, *rest), values)


def _pixels(image: bytes, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Decode an image's pixels, from 0 to 255, in a shape of three channels that come first or last."""
    import cv2

    last = shape[2] == 3
    height, width = shape[:2] if last else shape[1:]
    pixels = cv2.imdecode(np.frombuffer(image, np.uint8), cv2.IMREAD_COLOR)
    if pixels is None:
        raise ScriptError("--images: one of them can't be decoded")
    resized = cv2.resize(pixels, (width, height), interpolation=cv2.INTER_AREA).astype(np.uint8)
    return np.ascontiguousarray(resized if last else resized.transpose(2, 0, 1))


async def inputs(kind: str, url: str, model: str, key: str, ca_file: Path | None) -> tuple[Input, ...]:
    """Request the inputs of a server's model as a remote member of a kind does; the URL's path does not matter.

    Raises:
        ScriptError: the server is not there, or has no such model.
    """
    from ensemble_remote.client import CallError, Unavailable
    from ensemble_remote.endpoints import resolve
    from ensemble_remote.open_inference import OpenInference as OpenInferenceMember
    from ensemble_tensorflow_serving.member import TensorFlowServing as TensorFlowServingMember

    member = OpenInferenceMember if kind == OPEN_INFERENCE else TensorFlowServingMember
    # Its bearer token is known already.
    keyed = type("Keyed", (member,), {"authorization": lambda _: {"authorization": f"Bearer {key}"} if key else {}})
    parts = urlsplit(url)
    trusted = ca_file if parts.scheme in {"https", "grpcs"} else None
    config = keyed(
        name="model", url=f"{parts.scheme}://{parts.netloc}", model=model, ca_file=trusted, kind=kind.replace("-", "_")
    )
    try:
        server = config.connect((await resolve(config.host, config.port))[0], 0)
        try:
            found = (await server.describe(DESCRIBE_TIMEOUT_S)).inputs
            return tuple(Input(each.name, each.datatype, tuple(each.shape)) for each in found)
        finally:
            await server.close()
    except (Unavailable, OSError) as err:
        raise ScriptError(f"URL: no server with a model {model!r} that is ready responds at {url}: {err}") from err
    except CallError as err:
        raise ScriptError(f"--model: {url} has no model {model!r}: {err}") from err


@dataclass(frozen=True)
class TensorProtocol:
    """A request that carries tensors.

    Attributes:
        shapes: of inputs whose extents the server leaves open, without the batch, by name.
        inputs: as the server describes them.
        binary: whether the server takes tensors as bytes over HTTP.
    """

    name: ClassVar[str]
    model: str
    is_grpc: bool
    shapes: Mapping[str, tuple[int, ...]]
    inputs: tuple[Input, ...] = ()
    binary: bool = False

    async def described(self, transport: Transport, url: str, key: str, ca_file: Path | None = None) -> Self:
        """See `Protocol.described`."""
        return replace(self, inputs=await inputs(self.name, url, self.model, key, ca_file))

    def seen(self, body: bytes, label: str) -> int:
        """Return no flag: these answers are not looked into."""
        return 0


class OpenInference(TensorProtocol):
    """An infer request, over HTTP or gRPC."""

    name: ClassVar[str] = OPEN_INFERENCE

    async def described(self, transport: Transport, url: str, key: str, ca_file: Path | None = None) -> Self:
        """See `Protocol.described`."""
        found = await super().described(transport, url, key, ca_file)
        is_binary = not self.is_grpc and BINARY in (await transport.send(Request("/v2", method="GET"))).body
        return replace(found, binary=is_binary)

    def request(self, images: Sequence[bytes]) -> Request:
        """See `Protocol.request`."""
        tensors = filled(self.inputs, images, dict(self.shapes))
        if self.is_grpc:
            return _infer_message(self.model, tensors)
        # KServe's server fails on a request without an id.
        body: dict[str, Any] = {"id": "load", "inputs": [self._head(tensor) for tensor in tensors]}
        path = f"/v2/models/{quote(self.model, safe='')}/infer"
        if not self.binary:
            return Request(path, msgspec.json.encode(body), (("content-type", "application/json"),))
        head = msgspec.json.encode({**body, "parameters": {"binary_data_output": True}})
        headers = ("content-type", "application/octet-stream"), ("inference-header-content-length", str(len(head)))
        return Request(path, b"".join([head, *(tensor.raw for tensor in tensors)]), headers)

    def _head(self, tensor: Tensor) -> dict[str, Any]:
        head: dict[str, Any] = {"name": tensor.name, "datatype": tensor.datatype, "shape": tensor.shape}
        if self.binary:
            return {**head, "parameters": {"binary_data_size": len(tensor.raw)}}
        if isinstance(tensor.values, np.ndarray):
            return {**head, "data": tensor.values.ravel().tolist()}
        texts = [base64.b64encode(each).decode() for each in tensor.values]
        return {**head, "parameters": {"content_type": "base64"}, "data": texts}


def _infer_message(model: str, tensors: Sequence[Tensor]) -> Request:
    from ensemble_serving.protocol import inference_pb2 as pb

    message = pb.ModelInferRequest(model_name=model, id="load")
    for tensor in tensors:
        message.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        message.raw_input_contents.append(tensor.raw)
    return Request(INFER, message.SerializeToString())


class TensorFlowServing(TensorProtocol):
    """A predict request, over REST or gRPC."""

    name: ClassVar[str] = TENSORFLOW_SERVING

    def request(self, images: Sequence[bytes]) -> Request:
        """See `Protocol.request`."""
        tensors = filled(self.inputs, images, dict(self.shapes))
        if self.is_grpc:
            return self._message(tensors)
        columns = {tensor.name: _column(tensor) for tensor in tensors}
        # A single input has no name in the row form.
        rows = (
            next(iter(columns.values()))
            if len(columns) == 1
            else [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        )
        path = f"/v1/models/{quote(self.model, safe='')}:predict"
        return Request(
            path,
            msgspec.json.encode({"signature_name": SIGNATURE, "instances": rows}),
            (("content-type", "application/json"),),
        )

    def _message(self, tensors: Sequence[Tensor]) -> Request:
        from ensemble_tensorflow_serving import tensorflow_serving_pb2 as pb

        message = pb.PredictRequest(model_spec=pb.ModelSpec(name=self.model, signature_name=SIGNATURE))
        for tensor in tensors:
            sent = message.inputs[tensor.name]
            # What TensorFlow numbers beyond the names that are here is a number of an open enumeration.
            sent.dtype = NUMBERS[tensor.datatype]  # type: ignore[assignment]
            for extent in tensor.shape:
                sent.tensor_shape.dim.add(size=extent)
            if isinstance(tensor.values, np.ndarray):
                sent.tensor_content = tensor.raw
            else:
                sent.string_val.extend(tensor.values)
        return Request(PREDICT, message.SerializeToString())


def _column(tensor: Tensor) -> list[Any]:
    if isinstance(tensor.values, np.ndarray):
        rows: list[Any] = tensor.values.tolist()
        return rows
    return [{"b64": base64.b64encode(each).decode()} for each in tensor.values]
