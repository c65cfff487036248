"""Seldon's v1 REST API: `/api/v1.0/predictions`; `/api/v1.0/feedback` is in `feedback.py`.

The JSON has the form of the messages of `seldon.proto`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from deployments.contract.errors import InvalidParameter
from deployments.ingress import options
from deployments.ingress.error_style import ErrorStyle
from deployments.ingress.http import bodies
from deployments.ingress.open_inference.tensors import MOST_DIMENSIONS
from deployments.ingress.protocol import Service
from deployments.ingress.routes import OF_CLASSIFYING, Route, Routes, plain
from deployments.observe.observer import Call
from ensemble_seldon.graph import NEEDED, Graph, Predicted
from ensemble_tensorflow_serving import tensorflow_serving_pb2 as tf

PREFIX, TITLE = "/api/", "Seldon's API"
PATH = f"{PREFIX}v1.0/predictions"
# The data types that are taken, by their names in JSON.
DTYPES = {f"DT_{name}": getattr(tf, f"DT_{name}") for name in ("UINT8", "INT64", "FLOAT", "DOUBLE", "STRING")}


class TfDim(msgspec.Struct):
    """An extent; a text, as the JSON of protobuf's messages has numbers of 64 bits, or a number."""

    size: str | int


class TfShape(msgspec.Struct):
    """A shape."""

    dim: list[TfDim] = []


class TfTensor(msgspec.Struct, rename="camel", omit_defaults=True):
    """TensorFlow's TensorProto: encoded images, or pixels."""

    dtype: str
    tensor_shape: TfShape = msgspec.field(default_factory=TfShape)
    tensor_content: bytes = b""
    string_val: list[bytes] = []
    float_val: list[float] = []


class SeldonTensor(msgspec.Struct):
    """A shape, and all values in a row."""

    shape: list[int]
    values: list[float]


class DefaultData(msgspec.Struct, omit_defaults=True):
    """Pixels, [N,H,W,3], or probabilities, [N,C], in one of three forms."""

    names: list[str] = []
    tensor: SeldonTensor | None = None
    ndarray: list[Any] | None = None
    tftensor: TfTensor | None = None


class Meta(msgspec.Struct, omit_defaults=True):
    """The id of a request; an answer also has data without another place."""

    puid: str = ""
    tags: dict[str, Any] = {}


class SeldonMessage(msgspec.Struct, rename="camel", omit_defaults=True):
    """Either data, or one encoded image; in a true label also a text."""

    meta: Meta = msgspec.field(default_factory=Meta)
    data: DefaultData | None = None
    bin_data: bytes | None = None
    str_data: str | None = None


class Status(msgspec.Struct, frozen=True):
    """What went wrong: the HTTP status, the message, and the error's code."""

    code: int
    info: str
    reason: str
    status: str


class Failure(msgspec.Struct, frozen=True):
    """The answer to a request that failed."""

    status: Status


AS_STATUS = ErrorStyle(
    Failure,
    lambda error: {
        "status": {"code": error.http_status, "info": error.message, "reason": error.code, "status": "FAILURE"}
    },
)


def routes(service: Service) -> Routes:
    """Serve the one path."""
    ingress, graph = service.ingress, Graph(service)

    async def predict(request: Request, call: Call) -> Response:
        asked = options.with_headers(options.DEFAULT, request.headers)
        image = bodies.of_image(ingress.settings, service.max_image_bytes)
        body, began = await bodies.document(request, ingress.capacity, call.caller, image=image, asked=asked)
        message = bodies.parsed(body, SeldonMessage)
        images = _images(graph, message)
        predicted = await graph.predict(images, message.meta.puid, asked, call, began)
        return plain(msgspec.to_builtins(_answer(predicted, message.data)))

    route = Route(
        "POST",
        predict,
        f"{TITLE}: the probabilities for images",
        (SeldonMessage,),
        OF_CLASSIFYING,
        AS_STATUS,
        body={"application/json": SeldonMessage},
        observed=True,
    )
    return {PATH: route}


def _images(graph: Graph, message: SeldonMessage) -> Sequence[bytes]:
    data = message.data or DefaultData()
    given = (data.tensor, data.ndarray, data.tftensor, message.bin_data)
    if given.count(None) != len(given) - 1 or message.str_data is not None:
        raise InvalidParameter(NEEDED)
    if data.tensor is not None:
        return graph.from_numbers(data.tensor.shape, data.tensor.values)
    if data.ndarray is not None:
        return graph.from_lists(data.ndarray)
    if data.tftensor is not None:
        return graph.from_proto(_proto(data.tftensor))
    return [message.bin_data or b""]


def _proto(tensor: TfTensor) -> tf.TensorProto:
    if tensor.dtype not in DTYPES:
        raise InvalidParameter(f"the tftensor has a dtype of {sorted(DTYPES)}; got {tensor.dtype[:40]!r}")
    try:
        dims = [{"size": int(dim.size)} for dim in tensor.tensor_shape.dim[: MOST_DIMENSIONS + 1]]
        return tf.TensorProto(
            dtype=DTYPES[tensor.dtype],
            tensor_shape={"dim": dims},
            tensor_content=tensor.tensor_content,
            string_val=tensor.string_val,
            float_val=tensor.float_val,
        )
    except ValueError as err:
        raise InvalidParameter("the tftensor has a shape of numbers") from err


def _answer(predicted: Predicted, asked: DefaultData | None) -> SeldonMessage:
    """Write the answer in the form of the request; to an encoded image a tensor, as Seldon answers."""
    rows, data = predicted.probabilities, DefaultData(list(predicted.names))
    if asked is None or asked.tensor is not None:
        data.tensor = SeldonTensor(list(rows.shape), rows.ravel().tolist())
    elif asked.ndarray is not None:
        data.ndarray = rows.tolist()
    else:
        shape = TfShape([TfDim(str(extent)) for extent in rows.shape])
        data.tftensor = TfTensor("DT_FLOAT", shape, rows.astype("<f4").tobytes())
    return SeldonMessage(Meta(predicted.puid, dict(predicted.tags)), data)
