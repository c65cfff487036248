"""What a message will cost, read from its bytes before it is decoded.

A field of two bytes becomes an object of a hundred, and a number of one byte one of eight. So the fields are counted
first, nested ones too; the payload of a string or of bytes is skipped in one step. The work is bounded by `max_fields`.

https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

from functools import cache
from typing import Any, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from deployments.contract.errors import ImageTooLarge, InvalidParameter

M = TypeVar("M", bound=Message)
# Of a request: an image takes at most 7, as an `Example` of TensorFlow Serving's `Classify`; names, shapes, parameters
# and requested outputs take the rest.
FIELDS_PER_PART, FIELDS_BESIDES = 8, 1024
# Of packed integers, which may take eight times their bytes: 32 MiB of zeros took 2.9 s and 490 MB to decode.
MOST_VARINT_BYTES = 2 * 1024 * 1024
# As deep as protobuf itself decodes, and a varint as long.
MOST_DEPTH, MOST_VARINT = 100, 10
VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
FIXED_BYTES = {FIXED64: 8, FIXED32: 4}
KEPT = {FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES}
FIXED = {
    FieldDescriptor.TYPE_DOUBLE,
    FieldDescriptor.TYPE_FLOAT,
    *(FieldDescriptor.TYPE_FIXED32, FieldDescriptor.TYPE_FIXED64),
    *(FieldDescriptor.TYPE_SFIXED32, FieldDescriptor.TYPE_SFIXED64),
}


def max_fields(parts: int) -> int:
    """Return the number of fields that a request may have with `parts` images or labels."""
    return FIELDS_PER_PART * parts + FIELDS_BESIDES


def decoded(body: bytes, message: type[M], max_bytes: int, fields: int) -> M:
    """Decode a message of a type from its bytes, within limits on its bytes and its fields.

    Nested fields count, too; an element of a list that is not packed is one.

    Raises:
        ImageTooLarge: it has more bytes.
        InvalidParameter: it has more fields or packed numbers, or is no message of the type.
    """
    if len(body) > max_bytes:
        raise ImageTooLarge(f"the request has {len(body)} bytes; at most {max_bytes} are accepted")
    try:
        _check(body, message.DESCRIPTOR, fields)
        return message.FromString(body)
    except (DecodeError, IndexError) as err:
        raise InvalidParameter(f"the request is no {message.DESCRIPTOR.full_name}") from err


def _check(body: bytes, descriptor: Any, fields: int) -> None:
    """Raise InvalidParameter where decoding costs too much, DecodeError or IndexError where it is bound to fail."""
    open_messages = [(0, len(body), _nested(descriptor))]
    count = varint_bytes = 0
    while open_messages:
        at, end, nested = open_messages.pop()
        while at < end:
            count += 1
            if count > fields:
                raise InvalidParameter(f"the request has more than {fields} fields; send fewer elements")
            tag, at = _varint(body, at)
            kind = tag & 7
            if kind == VARINT:
                _, at = _varint(body, at)
            elif kind in FIXED_BYTES:
                at += FIXED_BYTES[kind]
            elif kind == LENGTH:
                length, at = _varint(body, at)
                start, at = at, at + length
                inner = nested.get(tag >> 3)
                if at <= end and inner is not None:
                    # What follows is read when the message inside has been.
                    open_messages.append((at, end, nested))
                    at, end, nested = start, at, _nested(inner)
                    if len(open_messages) > MOST_DEPTH:
                        raise DecodeError("too deep")
                elif tag >> 3 in nested:
                    varint_bytes += length
            else:
                raise DecodeError("a group")
            if at > end:
                raise DecodeError("torn")
        if varint_bytes > MOST_VARINT_BYTES:
            raise InvalidParameter(
                f"packed integers have {varint_bytes} bytes; at most {MOST_VARINT_BYTES} are accepted: "
                "send them raw, as raw_input_contents, or as tensor_content of a TensorProto"
            )


@cache
def _nested(descriptor: Any) -> dict[int, Any]:
    """Map the numbers of a message's fields to their message types, and of packed integers to None."""
    return {field.number: field.message_type for field in descriptor.fields if field.type not in KEPT | FIXED}


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
