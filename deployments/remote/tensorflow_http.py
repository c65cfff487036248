"""TensorFlow Serving's API by REST, as a client: row form, images as they were sent as `{"b64": ...}`.

Source: https://github.com/tensorflow/serving/blob/master/tensorflow/serving/g3doc/api_rest.md
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

import msgspec
import numpy as np
from numpy.typing import NDArray

from deployments.remote.credentials import Token
from deployments.remote.failures import Failed, Misfit, Nonsense, Refused
from deployments.remote.http import Http, decoded
from deployments.remote.server import Answered
from deployments.remote.settings import RemoteConfig
from deployments.remote.tensors import BYTES, Described, Fit, Tensor

DATATYPES = {"DT_FLOAT": "FP32", "DT_DOUBLE": "FP64", "DT_UINT8": "UINT8", "DT_STRING": BYTES, "DT_HALF": "FP16"}
# What a server that tells no metadata calls its tensors matters to nobody: a single one has no name in the row form.
UNNAMED = "unnamed"


class _Dim(msgspec.Struct):
    size: int | str = -1


class _Shape(msgspec.Struct):
    dim: list[_Dim] = []
    unknown_rank: bool = False


class _Info(msgspec.Struct):
    dtype: str
    tensor_shape: _Shape = msgspec.field(default_factory=_Shape)


class _Signature(msgspec.Struct):
    inputs: dict[str, _Info] = {}
    outputs: dict[str, _Info] = {}


class _Signatures(msgspec.Struct):
    signature_def: dict[str, _Signature]


class _Metadata(msgspec.Struct):
    signature_def: _Signatures


class _Model(msgspec.Struct):
    metadata: _Metadata
    model_spec: dict[str, Any] = {}


class _Answer(msgspec.Struct):
    predictions: list[Any]


MODEL, ANSWER = (msgspec.json.Decoder(kind).decode for kind in (_Model, _Answer))


class TensorFlowHttp:
    """One address of a server."""

    def __init__(
        self, config: RemoteConfig, where: str, token: Token, scores: int, signature: str, datatype: str
    ) -> None:
        """Set the IP address, the token, the most scores, the signature, and the type of an input that is not told."""
        self._http = Http(config, where, token)
        self._config, self._signature, self._datatype, self._scores = config, signature, datatype, scores
        version = config.version
        named = "" if version is None else f"/{'versions' if version.isdecimal() else 'labels'}/{version}"
        self._path = f"/v1/models/{quote(config.model_name, safe='')}{named}"

    async def describe(self, timeout_s: float) -> Described:
        """See `Server.describe`."""
        # That the model is there, whether or not the server tells more of it.
        await self._http.get(self._path, timeout_s)
        try:
            _, body = await self._http.get(f"{self._path}/metadata", timeout_s)
        except (Failed, Refused):
            return self._assumed()
        told = decoded(body, MODEL)
        signatures = told.metadata.signature_def.signature_def
        if self._signature not in signatures:
            raise Misfit(f"its model has no signature {self._signature!r} but {sorted(signatures)[:8]}")
        signature = signatures[self._signature]
        inputs, outputs = (
            [_tensor(*each) for each in tensors.items()] for tensors in (signature.inputs, signature.outputs)
        )
        return Described(inputs, outputs, str(told.model_spec.get("version", "")))

    def _assumed(self) -> Described:
        """What the configuration says of a model that the server tells nothing of."""
        datatype = BYTES if self._config.as_sent else self._datatype
        source = Tensor(self._config.input or UNNAMED, datatype, ())
        return Described([source], [Tensor(self._config.output or UNNAMED, "FP32", ())], self._config.version or "")

    async def infer(
        self, how: Fit, images: NDArray[Any] | Sequence[bytes], headers: Mapping[str, str], timeout_s: float
    ) -> Answered:
        """See `Server.infer`."""
        rows: list[Any]
        if isinstance(images, np.ndarray):
            rows = images.tolist()
        else:
            rows = [{"b64": base64.b64encode(image).decode()} for image in images]
        body = msgspec.json.encode({"signature_name": self._signature, "instances": rows})
        sent = {"content-type": "application/json", **headers}
        _, content = await self._http.post(f"{self._path}:predict", body, sent, timeout_s, self._scores)
        predictions = decoded(content, ANSWER).predictions
        # Of several outputs each has its name.
        if predictions and isinstance(predictions[0], dict):
            try:
                predictions = [row[how.output] for row in predictions]
            except (KeyError, TypeError) as err:
                raise Nonsense(f"it did not answer {how.output!r} for every image") from err
        try:
            # Its answers do not tell which version made them; the metadata did.
            return np.array(predictions, np.float64), ""
        except (ValueError, TypeError) as err:
            raise Nonsense("its answer is no array of numbers") from err

    async def close(self) -> None:
        """See `Server.close`."""
        await self._http.close()


def _tensor(name: str, info: _Info) -> Tensor:
    try:
        shape = () if info.tensor_shape.unknown_rank else tuple(int(dim.size) for dim in info.tensor_shape.dim)
    except ValueError as err:
        raise Nonsense(f"its metadata tell no shape of {name!r}") from err
    return Tensor(name, DATATYPES.get(info.dtype, info.dtype), shape)
