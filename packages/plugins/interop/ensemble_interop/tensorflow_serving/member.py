"""Members on a server that speaks TensorFlow Serving's API: TensorFlow Serving, OpenVINO Model Server before 2026.3.

REST has the row format, where encoded images are `{"b64": ...}`. Sources:
https://github.com/tensorflow/serving/tree/master/tensorflow_serving/apis and its g3doc/api_rest.md
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any, Literal
from urllib.parse import quote

import msgspec
import numpy as np
from google.protobuf import json_format
from google.protobuf.message import DecodeError
from numpy.typing import NDArray
from pydantic import Field

from deployments.contract.payload import Images
from ensemble_interop.remote.calls import JSON, GrpcConnection, HttpConnection, parse
from ensemble_interop.remote.client import InvalidResponse, Output, RequestRejected, ServerError
from ensemble_interop.remote.member import RemoteKind
from ensemble_interop.remote.open_inference import READ_DIMENSIONS, no_output, output_array
from ensemble_interop.remote.tensors import (
    BYTES,
    Binding,
    Content,
    IncompatibleModel,
    ModelMetadata,
    Tensor,
    TensorName,
)
from ensemble_interop.tensorflow_serving import tensorflow_serving_pb2 as pb

SIGNATURES = "signature_def"
# TensorFlow's data types by their names in the Open Inference Protocol; the enumeration is open, and INT32 is unnamed.
TYPES: dict[str, Any] = {
    **{"FP32": pb.DT_FLOAT, "FP64": pb.DT_DOUBLE, "FP16": pb.DT_HALF, BYTES: pb.DT_STRING},
    **{"UINT8": pb.DT_UINT8, "INT32": 3, "INT64": pb.DT_INT64},
}
NAMES: dict[int, str] = {number: name for name, number in TYPES.items()}


class TensorFlowGrpc(GrpcConnection):
    """Calls one endpoint of a server."""

    service = "tensorflow.serving.PredictionService"
    _config: TensorFlowServing

    def _spec(self) -> pb.ModelSpec:
        spec = pb.ModelSpec(name=self._config.model_name)
        version = self._config.version
        if version is not None and version.isdecimal():
            spec.version.value = int(version)
        elif version is not None:
            spec.version_label = version
        return spec

    async def describe(self, timeout_s: float) -> ModelMetadata:
        """See `Connection.describe`."""
        request = pb.GetModelMetadataRequest(model_spec=self._spec(), metadata_field=[SIGNATURES])
        described = await self._call("GetModelMetadata", request, pb.GetModelMetadataResponse, timeout_s)
        try:
            signatures = pb.SignatureDefMap.FromString(described.metadata[SIGNATURES].value)
        except DecodeError as err:
            raise InvalidResponse("the metadata can't be read") from err
        return signature_metadata(signatures, self._config.signature_name, _version(described.model_spec))

    async def infer(self, binding: Binding, images: Images, headers: Mapping[str, str], timeout_s: float) -> Output:
        """See `Connection.infer`."""
        request = predict_message(self._spec(), [binding.content(images)])
        request.model_spec.signature_name = self._config.signature_name
        request.output_filter.append(binding.output)
        response = await self._call("Predict", request, pb.PredictResponse, timeout_s, headers)
        if binding.output not in response.outputs:
            raise no_output(response.outputs, binding.output)
        return Output(_values(response.outputs[binding.output]), _version(response.model_spec))


def predict_message(spec: pb.ModelSpec, tensors: Sequence[Content]) -> pb.PredictRequest:
    """Make a predict request."""
    request = pb.PredictRequest(model_spec=spec)
    for tensor in tensors:
        sent = request.inputs[tensor.name]
        sent.dtype = TYPES[tensor.datatype]
        for extent in tensor.shape:
            sent.tensor_shape.dim.add(size=extent)
        if isinstance(tensor.values, np.ndarray):
            sent.tensor_content = tensor.raw
        else:
            sent.string_val.extend(tensor.values)
    return request


def signature_metadata(signatures: pb.SignatureDefMap, name: str, version: str) -> ModelMetadata:
    """Read the tensors of a model's signature; raise IncompatibleModel if the model does not have it."""
    if name not in signatures.signature_def:
        raise IncompatibleModel(f"the model has no signature {name!r} but {sorted(signatures.signature_def)[:8]}")
    signature = signatures.signature_def[name]
    inputs, outputs = (
        [_tensor(*each) for each in tensors.items()] for tensors in (signature.inputs, signature.outputs)
    )
    return ModelMetadata(inputs, outputs, version)


def _version(spec: pb.ModelSpec) -> str:
    return str(spec.version.value) if spec.HasField("version") else spec.version_label


def _tensor(name: str, info: pb.TensorInfo) -> Tensor:
    shape = () if info.tensor_shape.unknown_rank else tuple(dim.size for dim in info.tensor_shape.dim)
    return Tensor(name, _name(info.dtype), shape)


def _values(tensor: pb.TensorProto) -> NDArray[Any]:
    sent = np.array(tensor.half_val, np.int32)
    halves = sent.astype(np.uint16)
    if not np.array_equal(halves, sent):
        raise InvalidResponse("the output has a half_val of more than 16 bits")
    shape = [dim.size for dim in tensor.tensor_shape.dim[:READ_DIMENSIONS]]
    numbers = tensor.double_val or tensor.float_val
    return output_array(_name(tensor.dtype), shape, tensor.tensor_content or halves.tobytes(), numbers)


def _name(dtype: int) -> str:
    return NAMES.get(dtype, str(dtype))


# The name of the tensors of a server without metadata: the row format does not name a single input or output.
UNNAMED = "unnamed"


class _Signatures(msgspec.Struct):
    signature_def: dict[str, Any]


class _Model(msgspec.Struct):
    metadata: _Signatures
    model_spec: dict[str, Any] = {}


class _Response(msgspec.Struct):
    predictions: list[Any]


class TensorFlowHttp(HttpConnection):
    """Calls one endpoint of a server."""

    _config: TensorFlowServing

    def __init__(self, config: TensorFlowServing, ip: str, max_scores: int) -> None:
        super().__init__(config, ip, max_scores)
        version = config.version
        selected = "" if version is None else f"/{'versions' if version.isdecimal() else 'labels'}/{version}"
        self._path = f"/v1/models/{quote(config.model_name, safe='')}{selected}"
        # What the configuration describes, for a server without metadata.
        type_ = BYTES if config.as_sent else config.datatype
        inputs, outputs = Tensor(config.input or UNNAMED, type_, ()), Tensor(config.output or UNNAMED, "FP32", ())
        self._configured = ModelMetadata([inputs], [outputs], version or "")

    async def describe(self, timeout_s: float) -> ModelMetadata:
        """See `Connection.describe`."""
        # The model's status: every server reports that, and not every one metadata.
        await self._call(self._path, timeout_s)
        try:
            body = (await self._call(f"{self._path}/metadata", timeout_s)).body
        except (ServerError, RequestRejected):
            return self._configured
        model = parse(body, _Model)
        try:
            signatures = json_format.ParseDict(
                model.metadata.signature_def, pb.SignatureDefMap(), ignore_unknown_fields=True
            )
        except json_format.ParseError as err:
            raise InvalidResponse(f"the metadata can't be read: {err}") from err
        return signature_metadata(signatures, self._config.signature_name, str(model.model_spec.get("version", "")))

    async def infer(self, binding: Binding, images: Images, headers: Mapping[str, str], timeout_s: float) -> Output:
        """See `Connection.infer`; the version is empty, because responses do not have it."""
        body, sent = predict_body([binding.content(images)], self._config.signature_name)
        response = await self._call(f"{self._path}:predict", timeout_s, body, {**headers, **sent})
        predictions = parse(response.body, _Response, self._most_values).predictions
        # A model of several outputs names them.
        if predictions and isinstance(predictions[0], dict):
            try:
                predictions = [row[binding.output] for row in predictions]
            except (KeyError, TypeError) as err:
                raise InvalidResponse(f"the response lacks {binding.output!r} for an image") from err
        try:
            return Output(np.array(predictions, np.float64), "")
        except (ValueError, TypeError) as err:
            raise InvalidResponse("the predictions are no array of numbers") from err


def predict_body(tensors: Sequence[Content], signature: str) -> tuple[bytes, dict[str, str]]:
    """Encode the body of a predict request in the row format; return it with its headers."""
    columns: dict[str, list[Any]] = {
        each.name: each.values.tolist()
        if isinstance(each.values, np.ndarray)
        else [{"b64": base64.b64encode(image).decode()} for image in each.values]
        for each in tensors
    }
    # A single input has no name there.
    [*rows] = zip(*columns.values(), strict=True)
    instances = [row[0] if len(columns) == 1 else dict(zip(columns, row, strict=True)) for row in rows]
    return msgspec.json.encode({"signature_name": signature, "instances": instances}), JSON


class TensorFlowServing(RemoteKind):
    """A model on another server, called by REST or gRPC according to its URL."""

    over_grpc, over_http = TensorFlowGrpc, TensorFlowHttp
    kind: Literal["tensorflow_serving"] = Field(description="TensorFlow Serving's API")
    signature_name: TensorName = Field("serving_default", description="the signature of the model that is called")
    datatype: Literal["UINT8", "FP32"] = Field(
        "UINT8", description="type of the input, for a server without metadata, such as KServe's own over REST"
    )
