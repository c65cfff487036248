"""What a message will cost, read from its bytes before it is decoded.

A field of two bytes becomes an object of a hundred, and a number of one byte one of eight. So the fields are counted
first, nested ones too; the payload of a string or of bytes is skipped in one step. Images of a raw tensor count as
fields. So the work is bounded by `max_fields`.

https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import islice
from typing import Any, TypeVar

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message

from deployments.contract.errors import ImageTooLarge, InvalidParameter
from deployments.ingress.elements import LENGTH_BYTES, elements

M = TypeVar("M", bound=Message)
# Of packed integers, which may take eight times their bytes: 32 MiB of zeros took 2.9 s and 490 MB to decode.
MOST_VARINT_BYTES = 2 * 1024 * 1024
# As deep as protobuf itself decodes, and a varint as long.
MOST_DEPTH, MOST_VARINT = 100, 10
VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
FIXED_BYTES = {FIXED64: 8, FIXED32: 4}
KEPT, PACKED = {FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES}, 0
FIXED = {
    FieldDescriptor.TYPE_DOUBLE,
    FieldDescriptor.TYPE_FLOAT,
    *(FieldDescriptor.TYPE_FIXED32, FieldDescriptor.TYPE_FIXED64),
    *(FieldDescriptor.TYPE_SFIXED32, FieldDescriptor.TYPE_SFIXED64),
}
# Fields of bytes that hold a tensor; each other one holds an image. A raw tensor of the datatype BYTES holds images.
RAW, NUMBERS = "raw_input_contents", "tensor_content"
DATATYPE, IMAGES = "datatype", b"BYTES"


def decoded(body: bytes, message: type[M], max_bytes: int, fields: int, max_image_bytes: int) -> M:
    """Decode a message of a type from its bytes, within limits on its bytes, its fields and each image.

    Nested fields count, too; an element of a list that is not packed is one.

    Raises:
        ImageTooLarge: it has more bytes, or an image has.
        InvalidParameter: it has more fields or packed numbers, or is no message of the type.
    """
    if len(body) > max_bytes:
        raise ImageTooLarge(f"the request has {len(body)} bytes; at most {max_bytes} are accepted")
    try:
        check(body, len(body), message.DESCRIPTOR, fields, max_image_bytes)
        return message.FromString(body)
    except (DecodeError, IndexError) as err:
        raise InvalidParameter(f"the request is no {message.DESCRIPTOR.full_name}") from err


def check(body: bytes | memoryview, size: int, descriptor: Any, fields: int, max_image_bytes: int) -> None:
    """Check a message of a size, or its first part, before it is decoded.

    Raises:
        ImageTooLarge: an image has more bytes.
        InvalidParameter: it would cost too much.
        DecodeError, IndexError: it is no message of the type, or its end has not come.
    """
    count = varint_bytes = 0
    has_images = False
    for kind, start, end in _contents(body, size, descriptor):
        count += 1
        if count > fields:
            raise InvalidParameter(f"the request has more than {fields} fields; send fewer elements")
        if kind == DATATYPE:
            has_images = body[start:end] == IMAGES
        elif kind == RAW:
            count += _check_raw(body, start, end, has_images, fields - count, max_image_bytes)
        elif isinstance(kind, str):
            _check_image(end - start, max_image_bytes)
        elif kind == PACKED:
            varint_bytes += end - start
    if varint_bytes > MOST_VARINT_BYTES:
        raise InvalidParameter(
            f"packed integers have {varint_bytes} bytes; at most {MOST_VARINT_BYTES} are accepted: "
            "send them raw, as raw_input_contents, or as tensor_content of a TensorProto"
        )


def _contents(body: bytes | memoryview, size: int, descriptor: Any) -> Iterator[tuple[Any, int, int]]:
    """Yield the content of each field, nested ones too: its kind by `_kinds`, where it begins and where it ends.

    Raises:
        DecodeError, IndexError: as `check`.
    """
    open_messages = [(0, size, _kinds(descriptor))]
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
    """Map the numbers of a message's fields: to their type, `PACKED` for integers, of bytes or a datatype to a name."""
    nested = (field for field in descriptor.fields if field.type not in KEPT | FIXED)
    found = {field.number: field.message_type or PACKED for field in nested}
    images = [field for field in descriptor.fields if field.type == field.TYPE_BYTES and field.name != NUMBERS]
    images += [field for field in descriptor.fields if field.type == field.TYPE_STRING and field.name == DATATYPE]
    return found | {field.number: field.name for field in images}


def _check_raw(body: bytes | memoryview, start: int, end: int, has_images: bool, count: int, most: int) -> int:
    """Count the first images of a raw tensor, up to `count`; raise ImageTooLarge if one has more than `most` bytes."""
    with memoryview(body) as whole, whole[start:end] as raw:
        # An input may follow its raw tensor; of pixels the first four bytes are not the number of those that follow.
        if not has_images and int.from_bytes(raw[:LENGTH_BYTES], "little") != end - start - LENGTH_BYTES:
            return 0
        images = [stop - begin for begin, stop in islice(elements(raw), count)]
        _check_image(max(images, default=0), most)
        return len(images)


def _field(body: bytes | memoryview, kind: int, at: int) -> tuple[int, int]:
    """Return where the content of a field begins and ends; raise DecodeError for a group."""
    if kind == VARINT:
        return at, _varint(body, at)[1]
    if kind == LENGTH:
        length, start = _varint(body, at)
        return start, start + length
    if kind not in FIXED_BYTES:
        raise DecodeError("a group")
    return at, at + FIXED_BYTES[kind]


def _check_image(length: int, most: int) -> None:
    """Raise ImageTooLarge for an image with more than `most` bytes."""
    if length > most:
        raise ImageTooLarge(f"an image has {length} bytes; at most {most} are accepted (transformer.max_image_bytes)")


def _varint(body: bytes | memoryview, at: int) -> tuple[int, int]:
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
