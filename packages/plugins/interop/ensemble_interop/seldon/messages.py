"""Seldon's v1 messages as its JSON has them, and the same messages of gRPC.

Source: https://github.com/SeldonIO/seldon-core/blob/v1.18.2/proto/prediction.proto
"""

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from google.protobuf.struct_pb2 import ListValue

from deployments.ingress.http import base64_images
from ensemble_interop.seldon import seldon_pb2 as pb
from ensemble_interop.tensorflow_serving import tensorflow_serving_pb2 as tf

# An integer of 64 bits: in the JSON of protobuf's messages a text, of clients also a number.
Int64 = int | Annotated[str, msgspec.Meta(max_length=20, pattern=r"^-?[0-9]+\Z")]
DATA_TYPES = tf.DESCRIPTOR.enum_types_by_name["DataType"]


class TfDim(msgspec.Struct):
    """An extent."""

    size: Int64


class TfShape(msgspec.Struct):
    """A shape."""

    dim: list[TfDim] = []


class TfTensor(msgspec.Struct, rename="camel", omit_defaults=True):
    """TensorFlow's TensorProto: encoded images, or pixels."""

    dtype: str
    tensor_shape: TfShape = msgspec.field(default_factory=TfShape)
    tensor_content: bytes = b""
    string_val: Sequence[bytes] = []
    float_val: Sequence[float] = []
    int64_val: Sequence[Int64] = []

    def __post_init__(self) -> None:
        """Read the integers that came as texts; protobuf's own sequence has none."""
        if isinstance(self.int64_val, list):
            self.int64_val = [int(each) for each in self.int64_val]


class SeldonTensor(msgspec.Struct):
    """A shape, and all values in a row."""

    shape: Sequence[int]
    values: Sequence[float]


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


class Labelled(msgspec.Struct):
    """A message of which only the id is used."""

    meta: Meta = msgspec.field(default_factory=Meta)


class Feedback(msgspec.Struct):
    """The true labels of an answer's images; the answer has its request's id, and a reward is not used."""

    truth: SeldonMessage = msgspec.field(default_factory=SeldonMessage)
    request: Labelled = msgspec.field(default_factory=Labelled)
    response: Labelled = msgspec.field(default_factory=Labelled)
    reward: float = 0.0


def decode_image(content: Any) -> Any:
    """Decode the image of a message of JSON, if it has one in base64."""
    if isinstance(content, dict) and isinstance(text := content.get("binData"), str):
        [content["binData"]] = base64_images.decoded([text], "binData")
    return content


def from_proto(message: pb.SeldonMessage) -> SeldonMessage:
    """Read a message of gRPC."""
    meta, form = Meta(message.meta.puid), message.WhichOneof("data_oneof")
    if form == "binData":
        return SeldonMessage(meta, bin_data=message.binData)
    if form == "strData":
        return SeldonMessage(meta, str_data=message.strData)
    given, data = message.data, DefaultData()
    form = given.WhichOneof("data_oneof")
    if form == "tensor":
        data.tensor = SeldonTensor(given.tensor.shape, given.tensor.values)
    elif form == "ndarray":
        data.ndarray = _lists(given.ndarray)
    elif form == "tftensor":
        data.tftensor = _tensor(given.tftensor)
    return SeldonMessage(meta, data)


def feedback_from_proto(message: pb.Feedback) -> Feedback:
    """Read the true labels of gRPC."""
    request, response = (Labelled(Meta(each.meta.puid)) for each in (message.request, message.response))
    return Feedback(from_proto(message.truth), request, response)


def to_proto(message: SeldonMessage) -> pb.SeldonMessage:
    """Make an answer's message of gRPC."""
    made = pb.SeldonMessage(meta={"puid": message.meta.puid})
    for name, text in message.meta.tags.items():
        made.meta.tags[name].string_value = text
    data = message.data
    if data is None:
        return made
    made.data.names.extend(data.names)
    if data.tensor is not None:
        made.data.tensor.MergeFrom(pb.Tensor(shape=data.tensor.shape, values=data.tensor.values))
    if data.ndarray is not None:
        made.data.ndarray.extend(data.ndarray)
    if data.tftensor is not None:
        tensor, dims = data.tftensor, [{"size": int(dim.size)} for dim in data.tftensor.tensor_shape.dim]
        made.data.tftensor.MergeFrom(
            tf.TensorProto(dtype=tensor.dtype, tensor_shape={"dim": dims}, tensor_content=tensor.tensor_content)
        )
    return made


def _lists(values: ListValue) -> list[Any]:
    """Read a list's numbers, texts and lists; None for another value. The limit on fields bounds the list's length."""
    found: list[Any] = []
    for value in values.values:
        kind = value.WhichOneof("kind")
        if kind == "list_value":
            found.append(_lists(value.list_value))
        else:
            found.append(getattr(value, kind) if kind in {"number_value", "string_value"} else None)
    return found


def _tensor(tensor: tf.TensorProto) -> TfTensor:
    known = DATA_TYPES.values_by_number.get(tensor.dtype)
    shape = TfShape([TfDim(dim.size) for dim in tensor.tensor_shape.dim])
    values = tensor.tensor_content, tensor.string_val, tensor.float_val, tensor.int64_val
    return TfTensor("unknown" if known is None else known.name, shape, *values)
