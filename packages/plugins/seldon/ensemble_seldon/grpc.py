"""gRPC: Seldon's `seldon.protos.Seldon/Predict`; `SendFeedback` is in `feedback.py`."""

from __future__ import annotations

from typing import Any

from google.protobuf.struct_pb2 import ListValue

from deployments.contract.errors import InvalidParameter
from deployments.ingress.options import DEFAULT
from deployments.ingress.protocol import Service
from deployments.ingress.routes import Calls, Rpc
from deployments.observe.observer import Call
from ensemble_seldon import seldon_pb2 as pb
from ensemble_seldon.graph import NEEDED, Graph, Predicted
from ensemble_tensorflow_serving import tensorflow_serving_pb2 as tf

SELDON = pb.DESCRIPTOR.services_by_name["Seldon"]


def calls(service: Service) -> Calls:
    """Serve the one method; a list's elements are fields, and count as the elements of JSON do."""
    graph = Graph(service)

    async def predict(request: pb.SeldonMessage, call: Call) -> pb.SeldonMessage:
        form = request.WhichOneof("data_oneof")
        if form == "data":
            form = request.data.WhichOneof("data_oneof")
        if form == "binData":
            images: Any = [request.binData]
        elif form == "tensor":
            images = graph.from_numbers(request.data.tensor.shape, request.data.tensor.values)
        elif form == "ndarray":
            images = graph.from_lists(lists(request.data.ndarray))
        elif form == "tftensor":
            images = graph.from_proto(request.data.tftensor)
        else:
            raise InvalidParameter(NEEDED)
        return _message(await graph.predict(images, request.meta.puid, DEFAULT, call), form)

    rpc = Rpc(predict, observed=True, fields=lambda settings: settings.max_elements)
    return {f"{SELDON.full_name}/Predict": rpc}


def lists(values: ListValue) -> list[Any]:
    """Read a list's numbers, texts and lists; None for another value. The limit on fields bounds the list's length."""
    found: list[Any] = []
    for value in values.values:
        kind = value.WhichOneof("kind")
        if kind == "list_value":
            found.append(lists(value.list_value))
        else:
            found.append(getattr(value, kind) if kind in {"number_value", "string_value"} else None)
    return found


def _message(predicted: Predicted, form: str) -> pb.SeldonMessage:
    """Write the answer in the form of the request; to an encoded image a tensor, as Seldon answers."""
    rows = predicted.probabilities
    message = pb.SeldonMessage(meta={"puid": predicted.puid}, data={"names": predicted.names})
    for name, text in predicted.tags.items():
        message.meta.tags[name].string_value = text
    if form == "ndarray":
        message.data.ndarray.extend(rows.tolist())
    elif form == "tftensor":
        dims = [{"size": extent} for extent in rows.shape]
        raw = rows.astype("<f4").tobytes()
        message.data.tftensor.MergeFrom(
            tf.TensorProto(dtype=tf.DT_FLOAT, tensor_shape={"dim": dims}, tensor_content=raw)
        )
    else:
        message.data.tensor.shape.extend(rows.shape)
        message.data.tensor.values.extend(rows.ravel())
    return message
