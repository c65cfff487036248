"""Seldon's v1 view of the ensemble: images in a message, probabilities in another; the same for REST and gRPC.

An image is encoded, in `binData` or a tensor of DT_STRING, or pixels, which become a file that needs no encoder and go
the way of every other image.

Source: https://github.com/SeldonIO/seldon-core/blob/v1.18.2/proto/prediction.proto
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from deployments.contract.caller import MAX_ID, REQUEST_IDS
from deployments.contract.errors import InvalidParameter
from deployments.contract.options import Options
from deployments.ingress.open_inference import tensors
from deployments.ingress.open_inference.model import INPUT, Ensemble
from deployments.ingress.open_inference.tensors import Tensor
from deployments.ingress.protocol import Service
from deployments.observe.observer import Call
from ensemble_tensorflow_serving import tensorflow_serving_pb2 as tf
from ensemble_tensorflow_serving.servable import strings

# The numbers that a TensorProto may have: the Open Inference Protocol's name, and the field of those that are not raw.
NUMBERS = {
    tf.DT_UINT8: ("UINT8", ""),
    tf.DT_INT64: ("INT64", "int64_val"),
    tf.DT_FLOAT: ("FP32", "float_val"),
    tf.DT_DOUBLE: ("FP64", ""),
}
NEEDED = "the message needs 'data', with a tensor, an ndarray or a tftensor, or 'binData', an encoded image"


class Predicted(NamedTuple):
    """An answer.

    Attributes:
        names: of the classes.
        probabilities: float32 [N,C].
        puid: the id of the request, by which its true labels are sent.
        tags: data without another place, as the Open Inference Protocol's parameters of a response.
    """

    names: Sequence[str]
    probabilities: NDArray[np.float32]
    puid: str
    tags: dict[str, str]


class Graph:
    """The ensemble as that API sees it: one graph without a name."""

    def __init__(self, service: Service) -> None:
        """Set the served ensemble."""
        self._capacity, self._labels = service.ingress.capacity, service.labels
        self._model = Ensemble(service.ingress, service.labels)

    async def predict(
        self, images: Sequence[bytes], puid: str, asked: Options, call: Call, began: float | None = None
    ) -> Predicted:
        """Predict the classes' probabilities for encoded images; see `Ensemble.infer`.

        Raises:
            InvalidParameter: as `check_puid`.
        """
        check_puid(puid)
        if puid:
            call.caller = call.caller._replace(headers={**call.caller.headers, REQUEST_IDS[0]: puid})
            call.attributes["ensemble.request.id"] = puid
        tensor = Tensor(INPUT, "BYTES", [len(images)], images)
        inferred = await self._model.infer(tensor, ["probabilities"], asked, call, began)
        [probabilities] = inferred.outputs
        tags = inferred.parameters
        return Predicted(self._labels, probabilities.data, call.caller.request_id or tags["trace_id"], tags)

    def from_numbers(self, shape: Sequence[int], values: Sequence[float]) -> list[bytes]:
        """Read the images of a `tensor`."""
        extents = self._extents(shape)
        return _images(tensors.from_numbers("tensor", "FP64", extents, values))

    def from_lists(self, data: list[Any]) -> list[bytes]:
        """Read the images of an `ndarray`."""
        shape: list[int] = []
        level: Any = data
        while isinstance(level, list) and len(shape) <= tensors.MOST_DIMENSIONS:
            shape.append(len(level))
            level = level[0] if level else None
        return _images(tensors.from_list("ndarray", "FP64", self._extents(shape), data))

    def from_proto(self, tensor: tf.TensorProto) -> Sequence[bytes]:
        """Read the images of a `tftensor`; images of DT_STRING are encoded."""
        if tensor.dtype == tf.DT_STRING:
            self._capacity.check_count(len(tensor.string_val))
            return strings(tensor)
        if tensor.dtype not in NUMBERS:
            raise InvalidParameter("the tftensor is DT_UINT8, DT_INT64, DT_FLOAT or DT_DOUBLE, or images as DT_STRING")
        datatype, field = NUMBERS[tensor.dtype]
        shape = self._extents([dim.size for dim in tensor.tensor_shape.dim[: tensors.MOST_DIMENSIONS + 1]])
        if tensor.tensor_content or not field:
            return _images(tensors.from_raw("tftensor", datatype, shape, tensor.tensor_content, 0))
        return _images(tensors.from_numbers("tftensor", datatype, shape, getattr(tensor, field)))

    def _extents(self, shape: Sequence[int]) -> list[int]:
        """Check the shape of pixels, before the pixels are read."""
        extents = list(shape[: tensors.MOST_DIMENSIONS + 1])
        if len(extents) != 4 or extents[3] != 3 or min(extents) < 1:
            raise InvalidParameter(f"pixels have the shape [N,H,W,3], red, green and blue; got {extents}")
        self._capacity.check_count(extents[0])
        return extents


def check_puid(puid: str) -> None:
    """Raise InvalidParameter for an id that no request can have."""
    try:
        if len(puid.encode()) > MAX_ID:
            raise InvalidParameter(f"meta.puid has more than {MAX_ID} bytes")
    except UnicodeError as err:
        raise InvalidParameter("meta.puid is no text") from err


def _images(tensor: Tensor) -> list[bytes]:
    with np.errstate(invalid="ignore"):
        pixels = tensor.data.astype(np.uint8)
    if not np.array_equal(pixels, tensor.data):
        raise InvalidParameter("pixels are whole numbers from 0 to 255, neither scaled nor normalized")
    # Imported where pixels come: an ingress whose transformer has a process of its own needs it for nothing else.
    import cv2

    return [cv2.imencode(".bmp", each[..., ::-1])[1].tobytes() for each in pixels]
