"""A client of TensorFlow Serving's API by REST, in the row format; encoded images travel as `{"b64": ...}`.

Source: https://github.com/tensorflow/serving/blob/master/tensorflow/serving/g3doc/api_rest.md
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

import msgspec
import numpy as np
from google.protobuf import json_format

from deployments.contract.payload import Images
from ensemble_remote.calls import JSON, HttpConnection, parse
from ensemble_remote.client import InvalidResponse, Output, RequestRejected, ServerError
from ensemble_remote.config import RemoteConfig
from ensemble_remote.tensors import BYTES, Binding, Content, ModelMetadata, Tensor
from ensemble_tensorflow_serving import tensorflow_serving_pb2 as pb
from ensemble_tensorflow_serving.client_grpc import signature_metadata

# The name of the tensors of a server without metadata: the row format does not name a single input or output.
UNNAMED = "unnamed"


class _Signatures(msgspec.Struct):
    signature_def: dict[str, Any]


class _Model(msgspec.Struct):
    metadata: _Signatures
    model_spec: dict[str, Any] = {}


class _Response(msgspec.Struct):
    predictions: list[Any]


MODEL, RESPONSE = (msgspec.json.Decoder(kind).decode for kind in (_Model, _Response))


class TensorFlowHttp(HttpConnection):
    """Calls one endpoint of a server."""

    def __init__(self, config: RemoteConfig, ip: str, max_scores: int, signature: str, datatype: str) -> None:
        """Set the model's signature, and the input's type if there is no metadata; others: see `HttpConnection`."""
        super().__init__(config, ip, max_scores)
        version = config.version
        selected = "" if version is None else f"/{'versions' if version.isdecimal() else 'labels'}/{version}"
        self._path = f"/v1/models/{quote(config.model_name, safe='')}{selected}"
        self._signature = signature
        # What the configuration describes, for a server without metadata.
        type_ = BYTES if config.as_sent else datatype
        inputs, outputs = Tensor(config.input or UNNAMED, type_, ()), Tensor(config.output or UNNAMED, "FP32", ())
        self._configured = ModelMetadata([inputs], [outputs], version or "")

    async def describe(self, timeout_s: float) -> ModelMetadata:
        """See `Client.describe`."""
        # The model's status: every server reports that, and not every one metadata.
        await self._call(self._path, timeout_s)
        try:
            body = (await self._call(f"{self._path}/metadata", timeout_s)).body
        except (ServerError, RequestRejected):
            return self._configured
        model = parse(body, MODEL)
        try:
            signatures = json_format.ParseDict(
                model.metadata.signature_def, pb.SignatureDefMap(), ignore_unknown_fields=True
            )
        except json_format.ParseError as err:
            raise InvalidResponse(f"the metadata can't be read: {err}") from err
        return signature_metadata(signatures, self._signature, str(model.model_spec.get("version", "")))

    async def infer(self, binding: Binding, images: Images, headers: Mapping[str, str], timeout_s: float) -> Output:
        """See `Client.infer`; the version is empty, because responses do not have it."""
        body, sent = predict_body([binding.content(images)], self._signature)
        response = await self._call(f"{self._path}:predict", timeout_s, body, {**headers, **sent})
        predictions = parse(response.body, RESPONSE).predictions
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
