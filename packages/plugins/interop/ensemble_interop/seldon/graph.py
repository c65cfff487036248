"""Seldon's v1 view of the ensemble: images in a message, probabilities in another, and true labels.

An image is encoded, in `binData` or a tensor of DT_STRING, or pixels, which become a file that needs no encoder and go
the way of every other image.
"""

import math
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from deployments.contract.caller import MAX_ID, REQUEST_IDS
from deployments.contract.errors import InvalidParameter
from deployments.contract.options import Options
from deployments.ingress.open_inference import tensors
from deployments.ingress.open_inference.model import INPUT, Ensemble
from deployments.ingress.open_inference.tensors import Tensor
from deployments.ingress.protocol import Service
from deployments.observe.observer import Call
from ensemble_features.feedback.labels import TrueLabel, check_labels, refuse, taken
from ensemble_interop.seldon.messages import (
    DefaultData,
    Feedback,
    Meta,
    SeldonMessage,
    SeldonTensor,
    TfDim,
    TfShape,
    TfTensor,
)
from ensemble_interop.tensorflow_serving.servable import strings

# The numbers that a `tftensor` may have: the Open Inference Protocol's name, and the field of those that are not raw.
NUMBERS = {
    "DT_UINT8": ("UINT8", ""),
    "DT_INT64": ("INT64", "int64_val"),
    "DT_FLOAT": ("FP32", "float_val"),
    "DT_DOUBLE": ("FP64", ""),
}
NEEDED = "the message needs 'data', with a tensor, an ndarray or a tftensor, or 'binData', an encoded image"
LABELS_NEEDED = (
    "feedback needs 'truth', with a label for each image: an index, a name or a row with 1 for its class and 0 for the "
    "others, in a tensor or an ndarray; or strData"
)


class Graph:
    """The ensemble as that API sees it: one graph without a name."""

    def __init__(self, service: Service) -> None:
        """Set the served ensemble."""
        self._admission, self._labels = service.ingress.admission, service.labels
        self._model = Ensemble(service.ingress, service.labels)
        self._take = service.handles.get("feedback", refuse)

    async def predict(
        self, message: SeldonMessage, asked: Options, call: Call, began: float | None = None
    ) -> SeldonMessage:
        """Predict the classes' probabilities for a message's images, in the message's form; see `Ensemble.infer`.

        Raises:
            InvalidParameter: the message has no images, several forms of them, or an id that no request can have.
        """
        images, puid = self._images(message), message.meta.puid
        check_puid(puid)
        if puid:
            call.caller = call.caller._replace(headers={**call.caller.headers, REQUEST_IDS[0]: puid})
            call.attributes["ensemble.request.id"] = puid
        tensor = Tensor(INPUT, "BYTES", [len(images)], images)
        inferred = await self._model.infer(tensor, ["probabilities"], asked, call, began)
        [probabilities], tags = inferred.outputs, inferred.parameters
        rows, data = probabilities.data, DefaultData(list(self._labels))
        if message.data is None or message.data.tensor is not None:
            data.tensor = SeldonTensor(rows.shape, rows.ravel().tolist())
        elif message.data.ndarray is not None:
            data.ndarray = rows.tolist()
        else:
            shape = TfShape([TfDim(str(extent)) for extent in rows.shape])
            data.tftensor = TfTensor("DT_FLOAT", shape, rows.astype("<f4").tobytes())
        return SeldonMessage(Meta(call.caller.request_id or tags["trace_id"], dict(tags)), data)

    async def feedback(self, given: Feedback, call: Call) -> SeldonMessage:
        """Take the true labels of an answer's images in order; raise the first error after the others are taken."""
        puid = given.response.meta.puid or given.request.meta.puid
        check_puid(puid)
        labels = _labels(given.truth)
        if not labels:
            raise InvalidParameter(LABELS_NEEDED)

        def read(sent: tuple[int, Any]) -> TrueLabel:
            place, label = sent
            return _true_label(puid, place, label, len(self._labels))

        for error in await taken(self._take, read, list(enumerate(labels)), call.caller.name):
            if error is not None:
                raise error
        return SeldonMessage(Meta(puid))

    def _images(self, message: SeldonMessage) -> Sequence[bytes]:
        data = message.data or DefaultData()
        given = (data.tensor, data.ndarray, data.tftensor, message.bin_data)
        if given.count(None) != len(given) - 1 or message.str_data is not None:
            raise InvalidParameter(NEEDED)
        if data.tensor is not None:
            shape = self._extents(data.tensor.shape)
            return _files(tensors.from_numbers("tensor", "FP64", shape, data.tensor.values))
        if data.ndarray is not None:
            return _files(tensors.from_list("ndarray", "FP64", self._extents(_shape(data.ndarray)), data.ndarray))
        if data.tftensor is not None:
            return self._from_tftensor(data.tftensor)
        return [message.bin_data or b""]

    def _from_tftensor(self, tensor: TfTensor) -> Sequence[bytes]:
        """Read the images of a `tftensor`; images of DT_STRING are encoded."""
        shape = [int(dim.size) for dim in tensor.tensor_shape.dim[: tensors.MOST_DIMENSIONS + 1]]
        if tensor.dtype == "DT_STRING":
            self._admission.check_count(len(tensor.string_val))
            return strings(list(tensor.string_val), shape, not tensor.tensor_content)
        if tensor.dtype not in NUMBERS:
            raise InvalidParameter(f"the tftensor is one of {sorted(NUMBERS)}, or images as DT_STRING")
        datatype, field = NUMBERS[tensor.dtype]
        extents = self._extents(shape)
        if tensor.tensor_content or not field:
            return _files(tensors.from_raw("tftensor", datatype, extents, tensor.tensor_content, 0))
        return _files(tensors.from_numbers("tftensor", datatype, extents, getattr(tensor, field)))

    def _extents(self, shape: Sequence[int]) -> list[int]:
        """Check the shape of pixels, before the pixels are read."""
        extents = list(shape[: tensors.MOST_DIMENSIONS + 1])
        if len(extents) != 4 or extents[3] != 3 or min(extents) < 1:
            raise InvalidParameter(f"pixels have the shape [N,H,W,3], red, green and blue; got {extents}")
        self._admission.check_count(extents[0])
        return extents


def check_puid(puid: str) -> None:
    """Raise InvalidParameter for an id that no request can have."""
    try:
        if len(puid.encode()) > MAX_ID:
            raise InvalidParameter(f"meta.puid has more than {MAX_ID} bytes")
    except UnicodeError as err:
        raise InvalidParameter("meta.puid is no text") from err


def _shape(data: Any) -> list[int]:
    """Return the shape of nested lists, by the first list of each level."""
    shape: list[int] = []
    while isinstance(data, list) and len(shape) <= tensors.MOST_DIMENSIONS:
        shape.append(len(data))
        data = data[0] if data else None
    return shape


def _files(tensor: Tensor) -> list[bytes]:
    with np.errstate(invalid="ignore"):
        pixels = tensor.data.astype(np.uint8)
    if not np.array_equal(pixels, tensor.data):
        raise InvalidParameter("pixels are whole numbers from 0 to 255, neither scaled nor normalized")
    # Imported where pixels come: an ingress whose transformer has a process of its own needs it for nothing else.
    import cv2

    return [cv2.imencode(".bmp", each[..., ::-1])[1].tobytes() for each in pixels]


def _labels(truth: SeldonMessage) -> Sequence[Any]:
    """Return the labels of a message; a label is a number, a text, or a row."""
    if truth.str_data is not None:
        return [truth.str_data]
    data = truth.data or DefaultData()
    if data.ndarray or data.tensor is None:
        return data.ndarray or []
    shape, values = data.tensor.shape, data.tensor.values
    # The product of 100,000 extents takes 9 s.
    if len(shape) > tensors.MOST_DIMENSIONS or (shape and math.prod(shape) != len(values)):
        raise InvalidParameter(f"the truth's tensor has {len(values)} values; its shape is another")
    width = max(1, shape[-1]) if len(shape) > 1 else 1
    # Before millions of rows are made.
    check_labels(len(values) // width)
    return [list(values[start : start + width]) for start in range(0, len(values), width)] if width > 1 else [*values]


def _true_label(puid: str, place: int, label: Any, classes: int) -> TrueLabel:
    """Make an image's true label of a number, a text, or a row with one of them or with a 1 for the class."""
    if isinstance(label, list) and len(label) == 1:
        [label] = label
    elif isinstance(label, list):
        if len(label) != classes or label.count(1) != 1 or label.count(0) != classes - 1:
            raise InvalidParameter(f"{LABELS_NEEDED}; there are {classes} classes")
        label = label.index(1)
    # A tensor's indices are doubles.
    if isinstance(label, float) and label.is_integer():
        label = int(label)
    try:
        return msgspec.convert({"request_id": puid, "label": label, "index": place}, TrueLabel)
    except msgspec.ValidationError as err:
        raise InvalidParameter(f"{LABELS_NEEDED}; and 'response' with the answer's meta.puid: {err}") from err
