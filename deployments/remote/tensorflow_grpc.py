"""TensorFlow Serving's API by gRPC, as a client.

Source: https://github.com/tensorflow/serving/tree/master/tensorflow_serving/apis
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from deployments.protocol import tensorflow_serving_pb2 as pb
from deployments.remote.channels import Channel
from deployments.remote.credentials import Token
from deployments.remote.failures import Misfit, Nonsense
from deployments.remote.server import Answered
from deployments.remote.settings import RemoteConfig
from deployments.remote.tensors import BYTES, FLOATS, PIXELS, Described, Fit, Tensor

SERVICE = "/tensorflow.serving.PredictionService"
SIGNATURES = "signature_def"
# TensorFlow's numbers of what we send and take, as the Open Inference Protocol calls it.
DATATYPES = {1: "FP32", 2: "FP64", 4: "UINT8", 7: BYTES, 19: "FP16"}
NUMBERS = {name: number for number, name in DATATYPES.items()}


class TensorFlowGrpc:
    """One address of a server."""

    def __init__(self, config: RemoteConfig, where: str, token: Token, scores: int, signature: str) -> None:
        """Set the IP address, the token, the most scores that an answer holds, and which signature is asked."""
        self._channel = Channel(config, where, token, scores)
        self._config, self._signature = config, signature

    def _spec(self) -> pb.ModelSpec:
        spec = pb.ModelSpec(name=self._config.model_name)
        version = self._config.version
        if version is not None and version.isdecimal():
            spec.version.value = int(version)
        elif version is not None:
            spec.version_label = version
        return spec

    async def describe(self, timeout_s: float) -> Described:
        """See `Server.describe`."""
        request = pb.GetModelMetadataRequest(model_spec=self._spec(), metadata_field=[SIGNATURES])
        told = await self._call("GetModelMetadata", request, pb.GetModelMetadataResponse, timeout_s)
        try:
            signatures = pb.SignatureDefMap.FromString(told.metadata[SIGNATURES].value).signature_def
        except DecodeError as err:
            raise Nonsense("its metadata can't be read") from err
        if self._signature not in signatures:
            raise Misfit(f"its model has no signature {self._signature!r} but {sorted(signatures)[:8]}")
        signature = signatures[self._signature]
        inputs, outputs = (
            [_tensor(*each) for each in tensors.items()] for tensors in (signature.inputs, signature.outputs)
        )
        return Described(inputs, outputs, _version(told.model_spec))

    async def infer(
        self, how: Fit, images: NDArray[Any] | Sequence[bytes], headers: Mapping[str, str], timeout_s: float
    ) -> Answered:
        """See `Server.infer`."""
        request = pb.PredictRequest(model_spec=self._spec(), output_filter=[how.output])
        request.model_spec.signature_name = self._signature
        tensor = request.inputs[how.input.name]
        # What TensorFlow numbers beyond the names that are here is a number of an open enumeration.
        tensor.dtype = NUMBERS[how.input.datatype]  # type: ignore[assignment]
        shape = images.shape if isinstance(images, np.ndarray) else (len(images),)
        for extent in shape:
            tensor.tensor_shape.dim.add(size=extent)
        if isinstance(images, np.ndarray):
            tensor.tensor_content = images.tobytes()
        else:
            tensor.string_val.extend(images)
        answer = await self._call("Predict", request, pb.PredictResponse, timeout_s, headers)
        if how.output not in answer.outputs:
            raise Nonsense(f"it answered {sorted(answer.outputs)[:8]} and not {how.output!r}")
        return _values(answer.outputs[how.output]), _version(answer.model_spec)

    async def _call(
        self, name: str, request: Any, answer: Any, timeout_s: float, headers: Mapping[str, str] | None = None
    ) -> Any:
        return await self._channel.call(f"{SERVICE}/{name}", request, answer, timeout_s, headers)

    async def close(self) -> None:
        """See `Server.close`."""
        await self._channel.close()


def _version(spec: pb.ModelSpec) -> str:
    return str(spec.version.value) if spec.HasField("version") else spec.version_label


def _tensor(name: str, info: pb.TensorInfo) -> Tensor:
    shape = () if info.tensor_shape.unknown_rank else tuple(dim.size for dim in info.tensor_shape.dim)
    return Tensor(name, DATATYPES.get(int(info.dtype), str(int(info.dtype))), shape)


def _values(tensor: pb.TensorProto) -> NDArray[Any]:
    datatype = DATATYPES.get(int(tensor.dtype), "")
    if datatype not in FLOATS:
        raise Nonsense(f"it answered type {int(tensor.dtype)}, no floating point")
    shape = tuple(dim.size for dim in tensor.tensor_shape.dim)
    try:
        if tensor.tensor_content:
            return np.frombuffer(tensor.tensor_content, PIXELS[datatype]).reshape(shape)
        return np.array(tensor.float_val, np.float32).reshape(shape)
    except ValueError as err:
        raise Nonsense(f"its answer is not of the shape that it tells, {shape[:8]}") from err
