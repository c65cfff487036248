"""A client of TensorFlow Serving's API by gRPC.

Source: https://github.com/tensorflow/serving/tree/master/tensorflow_serving/apis
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from deployments.contract.payload import Images
from ensemble_remote.calls import GrpcConnection
from ensemble_remote.client import InvalidResponse, Output
from ensemble_remote.config import RemoteConfig
from ensemble_remote.open_inference_grpc import check_datatype
from ensemble_remote.tensors import BYTES, PIXELS, Binding, Content, IncompatibleModel, ModelMetadata, Tensor
from ensemble_tensorflow_serving import tensorflow_serving_pb2 as pb

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

    def __init__(self, config: RemoteConfig, ip: str, max_scores: int, signature: str) -> None:
        """Set the name of the model's signature; for the others see `GrpcConnection`."""
        super().__init__(config, ip, max_scores)
        self._signature = signature

    def _spec(self) -> pb.ModelSpec:
        spec = pb.ModelSpec(name=self._config.model_name)
        version = self._config.version
        if version is not None and version.isdecimal():
            spec.version.value = int(version)
        elif version is not None:
            spec.version_label = version
        return spec

    async def describe(self, timeout_s: float) -> ModelMetadata:
        """See `Client.describe`."""
        request = pb.GetModelMetadataRequest(model_spec=self._spec(), metadata_field=[SIGNATURES])
        described = await self._call("GetModelMetadata", request, pb.GetModelMetadataResponse, timeout_s)
        try:
            signatures = pb.SignatureDefMap.FromString(described.metadata[SIGNATURES].value)
        except DecodeError as err:
            raise InvalidResponse("the metadata can't be read") from err
        return signature_metadata(signatures, self._signature, _version(described.model_spec))

    async def infer(self, binding: Binding, images: Images, headers: Mapping[str, str], timeout_s: float) -> Output:
        """See `Client.infer`."""
        request = predict_message(self._spec(), [binding.content(images)])
        request.model_spec.signature_name = self._signature
        request.output_filter.append(binding.output)
        response = await self._call("Predict", request, pb.PredictResponse, timeout_s, headers)
        if binding.output not in response.outputs:
            names = sorted(response.outputs)[:8]
            raise InvalidResponse(f"the response has the outputs {names}; {binding.output!r} was expected")
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
    return Tensor(name, NAMES.get(info.dtype, str(info.dtype)), shape)


def _values(tensor: pb.TensorProto) -> NDArray[Any]:
    datatype = NAMES.get(tensor.dtype, str(tensor.dtype))
    check_datatype(datatype)
    shape = tuple(dim.size for dim in tensor.tensor_shape.dim)
    try:
        if tensor.tensor_content:
            return np.frombuffer(tensor.tensor_content, PIXELS[datatype]).reshape(shape)
        if tensor.dtype == pb.DT_HALF:
            return np.array(tensor.half_val, np.uint16).view(np.float16).reshape(shape)
        return np.array(tensor.double_val or tensor.float_val, PIXELS[datatype]).reshape(shape)
    except (ValueError, OverflowError) as err:
        raise InvalidResponse(f"the output does not have its declared shape {shape[:8]}") from err
