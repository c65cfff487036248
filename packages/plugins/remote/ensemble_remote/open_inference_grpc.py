"""A client of the Open Inference Protocol by gRPC.

Source: https://github.com/kserve/open-inference-protocol
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deployments.contract.payload import Images
from ensemble_remote.calls import GrpcConnection
from ensemble_remote.client import InvalidResponse, Output, Unavailable
from ensemble_remote.tensors import FLOATS, Binding, Content, ModelMetadata, Tensor
from ensemble_serving.protocol import inference_pb2 as pb


class OpenInferenceGrpc(GrpcConnection):
    """Calls one endpoint of a server."""

    service = "inference.GRPCInferenceService"

    async def describe(self, timeout_s: float) -> ModelMetadata:
        """See `Client.describe`."""
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
        """See `Client.infer`."""
        request = infer_message(self._config.model_name, [binding.content(images)], [binding.output])
        request.model_version = self._config.version or ""
        response = await self._call("ModelInfer", request, pb.ModelInferResponse, timeout_s, headers)
        return Output(_values(response, binding), response.model_version)


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


def check_datatype(datatype: str) -> None:
    """Raise InvalidResponse unless an output holds floating-point numbers."""
    if datatype not in FLOATS:
        raise InvalidResponse(f"the output has the data type {datatype}; a floating-point type was expected")


def _values(response: pb.ModelInferResponse, binding: Binding) -> NDArray[Any]:
    names = [output.name for output in response.outputs]
    if binding.output not in names:
        raise InvalidResponse(f"the response has the outputs {names}; {binding.output!r} was expected")
    position = names.index(binding.output)
    output = response.outputs[position]
    check_datatype(output.datatype)
    try:
        if response.raw_output_contents:
            values = np.frombuffer(response.raw_output_contents[position], FLOATS[output.datatype])
        else:
            contents = output.contents
            values = np.array(contents.fp64_contents if output.datatype == "FP64" else contents.fp32_contents)
        return values.reshape(tuple(output.shape))
    except (ValueError, IndexError) as err:
        raise InvalidResponse(f"the output does not have its declared shape {list(output.shape)[:8]}") from err
