"""The Open Inference Protocol (KServe v2), which Triton, KServe, MLServer and OpenVINO Model Server speak.

Source: https://github.com/kserve/open-inference-protocol, and Triton's extension for binary tensor data.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote

import msgspec
import numpy as np

from ensemble_capacity.load.protocols.tensors import Input, Tensor, filled
from ensemble_serving.transports import Request, Transport

# The name of the extension.
BINARY = b"binary_tensor_data"
INFER = "/inference.GRPCInferenceService/ModelInfer"


@dataclass(frozen=True)
class OpenInference:
    """An infer request, over HTTP or gRPC.

    Attributes:
        shapes: of inputs whose extents the server leaves open, without the batch, by name.
        binary: whether the server takes tensors as bytes over HTTP.
        inputs: as the server describes them.
    """

    name: ClassVar[str] = "open-inference"
    model: str
    is_grpc: bool
    shapes: Mapping[str, tuple[int, ...]]
    binary: bool = False
    inputs: tuple[Input, ...] = ()

    async def described(self, transport: Transport, url: str, key: str, ca_file: Path | None = None) -> OpenInference:
        """See `Protocol.described`."""
        from ensemble_capacity.load.protocols.describing import inputs

        described = await inputs("open_inference", url, self.model, key, ca_file)
        binary = not self.is_grpc and BINARY in (await transport.send(Request("/v2", method="GET"))).body
        return replace(self, inputs=described, binary=binary)

    def request(self, images: Sequence[bytes]) -> Request:
        """See `Protocol.request`."""
        tensors = filled(self.inputs, images, dict(self.shapes))
        if self.is_grpc:
            return _message(self.model, tensors)
        # KServe's server fails on a request without an id.
        body: dict[str, Any] = {"id": "load", "inputs": [self._head(tensor) for tensor in tensors]}
        path = f"/v2/models/{quote(self.model, safe='')}/infer"
        if not self.binary:
            return Request(path, msgspec.json.encode(body), (("content-type", "application/json"),))
        head = msgspec.json.encode({**body, "parameters": {"binary_data_output": True}})
        headers = ("content-type", "application/octet-stream"), ("inference-header-content-length", str(len(head)))
        return Request(path, b"".join([head, *(tensor.raw for tensor in tensors)]), headers)

    def seen(self, body: bytes, label: str) -> int:
        """Nothing: these answers are not looked into."""
        return 0

    def _head(self, tensor: Tensor) -> dict[str, Any]:
        head: dict[str, Any] = {"name": tensor.name, "datatype": tensor.datatype, "shape": tensor.shape}
        if self.binary:
            return {**head, "parameters": {"binary_data_size": len(tensor.raw)}}
        if isinstance(tensor.values, np.ndarray):
            return {**head, "data": tensor.values.ravel().tolist()}
        texts = [base64.b64encode(each).decode() for each in tensor.values]
        return {**head, "parameters": {"content_type": "base64"}, "data": texts}


def _message(model: str, tensors: Sequence[Tensor]) -> Request:
    from ensemble_serving.protocol import inference_pb2 as pb

    message = pb.ModelInferRequest(model_name=model, id="load")
    for tensor in tensors:
        message.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        message.raw_input_contents.append(tensor.raw)
    return Request(INFER, message.SerializeToString())
