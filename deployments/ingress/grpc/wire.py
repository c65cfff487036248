"""What a message will cost, read from its bytes before it is decoded.

A field of two bytes becomes an object of a hundred, and a number of one byte one of eight. So the fields are counted
first, nested ones too; the payload of a string or of bytes is skipped in one step. So the work is bounded by
`max_fields`.

https://protobuf.dev/programming-guides/encoding/
"""

from collections.abc import Iterator
from functools import cache
from typing import Any, TypeVar

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message

from deployments.contract.errors import ImageTooLarge, InvalidParameter

M = TypeVar("M", bound=Message)
# Of packed integers, which may take eight times their bytes: 32 MiB of zeros took 2.9 s and 490 MB to decode.
MOST_PACKED_BYTES = 2 * 1024 * 1024
# As deep as protobuf itself decodes, and a varint as long.
MOST_DEPTH, MOST_VARINT = 100, 10
VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
FIXED_BYTES = {FIXED64: 8, FIXED32: 4}
PACKED = 0
# Types of fields that are skipped: no message, and no integer.
SKIPPED = {
    *(FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES, FieldDescriptor.TYPE_DOUBLE, FieldDescriptor.TYPE_FLOAT),
    *(FieldDescriptor.TYPE_FIXED32, FieldDescriptor.TYPE_FIXED64),
    *(FieldDescriptor.TYPE_SFIXED32, FieldDescriptor.TYPE_SFIXED64),
}


def decoded(body: bytes, message: type[M], max_bytes: int, fields: int) -> M:
    """Decode a message of a type from its bytes, within limits on its bytes and its fields.

    Nested fields count, too; an element of a list that is not packed is one.

    Raises:
        ImageTooLarge: it has more bytes.
        InvalidParameter: it has more fields or packed integers, or is no message of the type.
    """
    if len(body) > max_bytes:
        raise ImageTooLarge(f"the request has {len(body)} bytes; at most {max_bytes} are accepted")
    try:
        _check(body, message.DESCRIPTOR, fields)
        return message.FromString(body)
    except (DecodeError, IndexError) as err:
        raise InvalidParameter(f"the request is no {message.DESCRIPTOR.full_name}") from err


def _check(body: bytes, descriptor: Any, fields: int) -> None:
    """Raise InvalidParameter for a message that costs too much; DecodeError or IndexError if it is no message."""
    packed_bytes = 0
    for count, (kind, start, end) in enumerate(_contents(body, descriptor), 1):
        if count > fields:
            raise InvalidParameter(f"the request has more than {fields} fields; send fewer elements")
        if kind == PACKED:
            packed_bytes += end - start
    if packed_bytes > MOST_PACKED_BYTES:
        raise InvalidParameter(
            f"packed integers have {packed_bytes} bytes; at most {MOST_PACKED_BYTES} are accepted: "
            "send them raw, as raw_input_contents, or as tensor_content of a TensorProto"
        )


def _contents(body: bytes, descriptor: Any) -> Iterator[tuple[Any, int, int]]:
    """Yield the content of each field, nested ones too: its kind by `_kinds`, where it begins and where it ends.

    Raises:
        DecodeError, IndexError: it is no message of the type.
    """
    open_messages = [(0, len(body), _kinds(descriptor))]
    while open_messages:
        at, end, kinds = open_messages.pop()
        while at < end:
            tag, at = _varint(body, at)
            start, at = _field(body, tag & 7, at)
            kind = kinds.get(tag >> 3) if tag & 7 == LENGTH else None
            yield kind, start, at
            if at > end:
                raise DecodeError("torn")
            if isinstance(kind, Descriptor):
                # What follows is read when the message inside has been.
                open_messages.append((at, end, kinds))
                at, end, kinds = start, at, _kinds(kind)
                if len(open_messages) > MOST_DEPTH:
                    raise DecodeError("too deep")


@cache
def _kinds(descriptor: Any) -> dict[int, Any]:
    """Map the numbers of a message's fields that are messages to their type, and of integers to `PACKED`."""
    nested = (field for field in descriptor.fields if field.type not in SKIPPED)
    return {field.number: field.message_type or PACKED for field in nested}


def _field(body: bytes, kind: int, at: int) -> tuple[int, int]:
    """Return where the content of a field begins and ends; raise DecodeError for a group."""
    if kind == VARINT:
        return at, _varint(body, at)[1]
    if kind == LENGTH:
        length, start = _varint(body, at)
        return start, start + length
    if kind not in FIXED_BYTES:
        raise DecodeError("a group")
    return at, at + FIXED_BYTES[kind]


def _varint(body: bytes, at: int) -> tuple[int, int]:
    """Read a number; return it and the position behind it."""
    if (value := body[at]) < 128:
        return value, at + 1
    value &= 127
    for place in range(1, MOST_VARINT):
        byte = body[at + place]
        value |= (byte & 127) << (7 * place)
        if byte < 128:
            return value, at + place + 1
    raise DecodeError("a number has no end")
