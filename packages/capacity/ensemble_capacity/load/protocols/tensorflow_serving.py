"""TensorFlow Serving's predict API, over REST and gRPC.

Source: https://github.com/tensorflow/serving/blob/master/tensorflow/serving/g3doc/api_rest.md
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

SIGNATURE = "serving_default"
PREDICT = "/tensorflow.serving.PredictionService/Predict"
# https://github.com/tensorflow/tensorflow/blob/master/tensorflow/core/framework/types.proto
NUMBERS = {"FP32": 1, "FP64": 2, "INT32": 3, "UINT8": 4, "BYTES": 7, "INT64": 9, "FP16": 19}


@dataclass(frozen=True)
class TensorFlowServing:
    """A predict request, over REST or gRPC.

    Attributes:
        shapes: of inputs whose extents the server leaves open, without the batch, by name.
        inputs: as the server describes them.
    """

    name: ClassVar[str] = "tensorflow-serving"
    model: str
    is_grpc: bool
    shapes: Mapping[str, tuple[int, ...]]
    inputs: tuple[Input, ...] = ()

    async def described(
        self, transport: Transport, url: str, key: str, ca_file: Path | None = None
    ) -> TensorFlowServing:
        """See `Protocol.described`."""
        from ensemble_capacity.load.protocols.describing import inputs

        return replace(self, inputs=await inputs("tensorflow_serving", url, self.model, key, ca_file))

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

    def seen(self, body: bytes, label: str) -> int:
        """Nothing: these answers are not looked into."""
        return 0

    def _message(self, tensors: Sequence[Tensor]) -> Request:
        from deployments.protocol import tensorflow_serving_pb2 as pb

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
