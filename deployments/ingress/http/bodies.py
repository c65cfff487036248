"""Reads bodies within bounds: each byte counts at the ingress as it comes, a compressed one as it is sent."""

from __future__ import annotations

import json
import re
import sys
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import NamedTuple, TypeVar

import msgspec
from python_multipart.multipart import parse_options_header
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from deployments.contract.caller import Caller
from deployments.contract.errors import EnsembleError, ImageTooLarge, InvalidParameter, UnsupportedMediaType
from deployments.contract.options import Options
from deployments.contract.settings import MIB
from deployments.ingress.admission import AdmissionController
from deployments.ingress.elements import elements
from deployments.ingress.options import DEFAULT
from deployments.ingress.settings import IngressSettings
from deployments.ingress.uploads import Upload

# Many clients send "application/octet-stream" for a file of unknown type, and curl declares every body a form.
IMAGE_TYPES = re.compile("(image/.*|application/(octet-stream|x-www-form-urlencoded))?")
# What a form may have besides its images: with each image its headers, of which a long file name is the most.
FORM_OVERHEAD_BYTES, PART_OVERHEAD_BYTES = 64 * 1024, 1024
# A refused request that sends more than this, and could be sent again at once, waits for its turn.
LARGE_BYTES = 2**20
# A text field is no image, and its beginning is enough to say so.
MOST_OF_FIELD = 4096
BASE64 = "an image is standard base64 (with + and /), without line breaks"
T = TypeVar("T")
# Python reads an integer in a time that grows with the square of its digits: 32 MiB of integers took a second.
sys.set_int_max_str_digits(sys.int_info.str_digits_check_threshold)
# In a request's scope, when all of its body has been read.
WHOLE = "ensemble.body.whole"
# zlib's `wbits` for each encoding: the window's size, and 16 more for gzip's header.
WINDOWS = {"gzip": 16 + zlib.MAX_WBITS, "x-gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
MOST_AT_ONCE = 64 * 1024
# How many times as large a body may become, or how many bytes where that is more. An image takes five times its bytes
# until it is refused; these keep that below 8 bytes for each byte sent, and 64 MB.
MOST_TIMES, FREE_BYTES = 3, 8 * MIB
NOT_ALL = "the body is not what {} compressed in one piece, all of it and nothing else"


class Limit(NamedTuple):
    """The most bytes of a body, and the setting that says so."""

    most: int
    setting: str = ""

    def error(self, what: str) -> ImageTooLarge:
        """Make the error of a body that exceeds the limit."""
        return ImageTooLarge(f"{what}; at most {self.most} are accepted{self.setting and f' ({self.setting})'}")


UNLIMITED = Limit(sys.maxsize)


def of_request(settings: IngressSettings) -> Limit:
    """Return the limit of any body."""
    return Limit(settings.max_request_bytes, "ingress.max_request_bytes")


def of_image(settings: IngressSettings, max_image_bytes: int) -> Limit:
    """Return the limit of a body that is one image."""
    if max_image_bytes > settings.max_request_bytes:
        return of_request(settings)
    return Limit(max_image_bytes, "transformer.max_image_bytes")


class BoundedParser(MultiPartParser):
    """Starlette's parser for forms, with limits on the whole body and on each part, which are kept in memory."""

    def __init__(
        self, request: Request, admission: AdmissionController, limit: Limit, image: Limit, arrival: Upload
    ) -> None:
        """Set what bounds the number of parts, and the limits of the body and of an image."""
        most, content = admission.settings.max_parts, self._pieces(bounded(request, limit, arrival))
        super().__init__(request.headers, content, max_files=most, max_fields=most, max_part_size=MOST_OF_FIELD)
        self.spool_max_size, self._most = limit.most, image.most + 1
        self._admission, self._parts, self._kept, self._is_ended = admission, 0, 0, False
        # Bytes that have come and are not of a part's content.
        self._overhead = 0

    async def _pieces(self, chunks: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
        """Yield a form piece by piece, and check after each piece what the parser goes through byte by byte.

        That is whatever is outside the images, such as blanks behind a boundary, and each boundary within an image.

        Raises:
            InvalidParameter: there is too much of either.
        """
        boundary = parse_options_header(self.headers["content-type"])[1].get(b"boundary", b"")
        boundaries, most = 0, self._admission.settings.max_parts + 1
        async for chunk in chunks:
            for start in range(0, len(chunk), MOST_AT_ONCE):
                piece = chunk[start : start + MOST_AT_ONCE]
                self._overhead += len(piece)
                yield piece
                # The parser has read this piece by now, and refuses a form of too many parts by itself.
                if (boundaries := boundaries + piece.count(b"\r\n--" + boundary)) > most:
                    raise InvalidParameter(f"the form has its boundary more than {most} times; no image may contain it")
                if self._overhead > FORM_OVERHEAD_BYTES + PART_OVERHEAD_BYTES * self._parts:
                    raise InvalidParameter(f"the form has {self._overhead} bytes outside its images; send fewer")

    def on_part_begin(self) -> None:
        """Count a part, whatever it is; raise InvalidParameter if it is one image too many."""
        super().on_part_begin()
        self._parts, self._kept = self._parts + 1, 0
        self._admission.check_count(self._parts)

    def on_part_data(self, data: bytes, start: int, end: int) -> None:
        """Keep what comes of a part, up to one byte more than an image may have."""
        self._overhead -= end - start
        most = MOST_OF_FIELD if self._current_part.file is None else self._most
        kept = min(end - start, most - self._kept)
        self._kept += kept
        super().on_part_data(data, start, start + kept)

    def on_end(self) -> None:
        """Note that the closing boundary has come."""
        self._is_ended = True

    async def parse(self) -> FormData:
        """Parse the form; raise MultiPartException if it is malformed, or was cut off and so lost its last part."""
        try:
            form = await super().parse()
        except MultiPartException as err:
            if err.__cause__ is None:
                raise
            begins = "" if self._parts else "; it begins with its boundary, and nothing may come before that"
            raise MultiPartException(f"{err.__cause__}{begins}") from err
        if not self._is_ended:
            await form.close()
            raise MultiPartException("it does not end with its boundary")
        return form


def media_type(headers: Mapping[str, str]) -> str:
    """Return the declared content type without its parameters, in small letters; empty if there is none."""
    return headers.get("content-type", "").partition(";")[0].strip().lower()


def no_image(declared: str) -> UnsupportedMediaType:
    """Make the error of a declared type other than an image's."""
    return UnsupportedMediaType(
        f"{declared!r} is no image; send the file with Content-Type: image/jpeg (or what it is), or without one"
    )


async def bounded(request: Request, limit: Limit, arrival: Upload) -> AsyncGenerator[bytes, None]:
    """Yield the request's body, chunk by chunk; a body that declares too many bytes is not read at all.

    Raises:
        ImageTooLarge: it exceeds the limit.
        Overloaded: it exceeds the limit of bytes in flight.
        UnsupportedMediaType: its encoding is unknown.
        InvalidParameter: it is not compressed as it declares.
    """
    received, declared = 0, declared_bytes(request, limit)
    encoding = request.headers.get("content-encoding", "").strip().lower()
    async for chunk in request.stream() if encoding in {"", "identity"} else decoded(request, encoding):
        # The last one is empty.
        if chunk:
            received += len(chunk)
            if received > limit.most:
                raise limit.error("the request has more bytes")
            arrival.grow(len(chunk), received == declared)
            yield chunk
    request.scope[WHOLE] = True


def declared_bytes(request: Request, limit: Limit = UNLIMITED) -> int:
    """Return the number of bytes that a request declares, or -1; raise ImageTooLarge if they exceed the limit."""
    text = request.headers.get("content-length", "")
    # Thousands of zeros may stand before them, and Python reads no number of so many digits.
    declared = int(text.lstrip("0") or "0") if text.isdecimal() else -1
    if declared > limit.most:
        raise limit.error(f"the request declares {declared} bytes")
    return declared


async def decoded(request: Request, encoding: str) -> AsyncGenerator[bytes, None]:
    """Undo the body's `Content-Encoding`, and yield the body in pieces of at most 64 KiB.

    Raises:
        UnsupportedMediaType: the encoding is another than gzip or deflate.
        InvalidParameter: the body is not compressed as it declares, or only a part of it.
        ImageTooLarge: it becomes too large for its compressed size.
    """
    if encoding not in WINDOWS:
        raise UnsupportedMediaType(f"Content-Encoding {encoding[:40]!r} is not known; send gzip, deflate or none")
    decoder = zlib.decompressobj(WINDOWS[encoding])
    came = became = 0
    try:
        async for chunk in request.stream():
            came += len(chunk)
            rest = chunk
            # zlib would keep what comes behind the end, and copy all of it with every chunk.
            if chunk and decoder.eof:
                raise InvalidParameter(NOT_ALL.format(encoding))
            while piece := decoder.decompress(rest, MOST_AT_ONCE):
                if (became := became + len(piece)) > max(FREE_BYTES, MOST_TIMES * came):
                    raise ImageTooLarge(
                        f"the body becomes more than {MOST_TIMES} times as large as its compressed size, and more than "
                        f"{FREE_BYTES} bytes; send it without Content-Encoding, or an image as PNG or JPEG"
                    )
                yield piece
                rest = decoder.unconsumed_tail
    except zlib.error as err:
        raise InvalidParameter(f"the body is not compressed by {encoding}: {err}") from err
    if not decoder.eof or decoder.unused_data:
        raise InvalidParameter(NOT_ALL.format(encoding))


async def document(
    request: Request,
    admission: AdmissionController,
    by: Caller,
    limit: Limit | None = None,
    json_bytes: int = sys.maxsize,
    image: Limit | None = None,
    asked: Options = DEFAULT,
) -> tuple[bytes, float]:
    """Admit a request, and read its whole body, a JSON document; also when it began to arrive, as `Upload` has it.

    To parse millions of elements would hold the event loop for seconds and take a hundred times their bytes. A comma or
    a bracket within a text counts too; base64 has none.

    Args:
        request: the request.
        admission: admits it.
        by: who sends it.
        limit: its limit; default: any body's.
        json_bytes: how many bytes of the body are JSON, of which elements are counted.
        image: the limit of each image, if the JSON has images in base64, and a raw tensor of images follows it.
        asked: the options of the request's headers, which are known before its body.

    Raises:
        EnsembleError: as `AdmissionController.arriving` and `bounded`.
        ImageTooLarge: an image, or its text, is too long; the rest is not read.
        InvalidParameter: it may have more elements or images than the settings allow; the rest is not read.
    """
    settings, chunks, count, text = admission.settings, [], 0, 0
    limit, raw = limit or of_request(settings), image and RawImages(admission, image)
    async with admission.arriving(asked, by) as arrival:
        async for chunk in bounded(request, limit, arrival):
            in_json, rest = chunk[:json_bytes], chunk[json_bytes:]
            json_bytes -= len(in_json)
            count += check_elements(in_json, settings.max_elements, count)
            if image and raw:
                text = check_text(in_json, image, text)
                raw.check(rest)
            chunks.append(chunk)
    return b"".join(chunks), arrival.began


def parsed(body: bytes, model: type[T], hint: str = "") -> T:
    """Parse a JSON document as a typed model; raise InvalidParameter, with a hint, if it does not fit the model."""
    try:
        # Unlike msgspec's own decoder this one takes a text of half a character, which some clients send as an id.
        return msgspec.convert(json.loads(body), model)
    except (ValueError, RecursionError) as err:
        hints = [err, *filter(None, [hint, BASE64 if "base64" in str(err) else ""])]
        raise InvalidParameter(f"the body is not the JSON object that is needed: {'; '.join(map(str, hints))}") from err


def check_elements(chunk: bytes, most: int, before: int = 0) -> int:
    """Return the most elements that a part of a JSON document can begin; raise InvalidParameter for too many."""
    elements = sum(map(chunk.count, (b",", b"[", b"{")))
    if before + elements > most:
        raise InvalidParameter(f"the JSON has more than {most} commas and opening brackets")
    return elements


def check_text(chunk: bytes, image: Limit, before: int = 0) -> int:
    """Count the bytes since a JSON document's last text or element; raise ImageTooLarge if no image is as long."""
    text = len(chunk) - 1 - end if (end := max(map(chunk.rfind, (b'"', b",")))) >= 0 else before + len(chunk)
    if text > image.most * 4 // 3 + 4:
        raise image.error("an image has more bytes")
    return text


class RawImages:
    """Follows the images of a raw tensor as it arrives."""

    def __init__(self, admission: AdmissionController, image: Limit) -> None:
        """Set what bounds their number, and the limit of each."""
        self._admission, self._image = admission, image
        # How many have begun, what has come of the next one's length, and where that is in what comes next.
        self._count, self._begun, self._at = 0, b"", 0

    def check(self, chunk: bytes) -> None:
        """Raise ImageTooLarge for an image that is too long, and InvalidParameter for one too many."""
        raw, at = self._begun + chunk, self._at
        for begin, end in elements(raw, at):
            self._count, at = self._count + 1, end
            self._admission.check_count(self._count)
            if end - begin > self._image.most:
                raise self._image.error(f"an image has {end - begin} bytes")
        self._begun, self._at = raw[at:], max(0, at - len(raw))


async def images(
    request: Request, admission: AdmissionController, arrival: Upload, max_image_bytes: int
) -> list[bytes | EnsembleError]:
    """Read a body's images: one, or a form's; a part that is too large or declares another type gives its error.

    Raises:
        UnsupportedMediaType: the body declares another type.
        InvalidParameter: the form is malformed, or has other parts, or too many.
        ImageTooLarge: it exceeds the limits.
        Overloaded: it exceeds the limit of bytes in flight.
    """
    declared, settings = media_type(request.headers), admission.settings
    image = of_image(settings, max_image_bytes)
    if declared != "multipart/form-data":
        if not IMAGE_TYPES.fullmatch(declared):
            raise no_image(declared)
        # A body that came in one piece is not copied.
        return [b"".join([chunk async for chunk in bounded(request, image, arrival)])]
    limit = of_request(settings)
    limit = limit._replace(most=limit.most + FORM_OVERHEAD_BYTES)
    # Also of a form that is malformed already by its type.
    declared_bytes(request, limit)
    try:
        form = await BoundedParser(request, admission, limit, image, arrival).parse()
    except (MultiPartException, KeyError, UnicodeError) as err:
        raise InvalidParameter(f"the form is malformed: {getattr(err, 'message', err)}") from err
    try:
        if others := sorted({name for name, _ in form.multi_items() if name != "image"}):
            raise InvalidParameter(f"the form has a part {others[0]!r}; name every part 'image'")
        parts = form.getlist("image")
        if not parts:
            raise InvalidParameter("the form has no part 'image'")
        return [await _part(part, image) for part in parts]
    finally:
        await form.close()


async def _part(part: UploadFile | str, limit: Limit) -> bytes | EnsembleError:
    if isinstance(part, str):
        return InvalidParameter("the part 'image' is a text field; send the file itself, with a filename")
    if not IMAGE_TYPES.fullmatch(declared := media_type(part.headers)):
        return no_image(declared)
    content = await part.read()
    return limit.error("the image has more bytes") if len(content) > limit.most else content


def has_large_rest(request: Request) -> bool:
    """Tell whether a request that was not read to its end declares more than `LARGE_BYTES`, or no length."""
    if WHOLE in request.scope:
        return False
    return "transfer-encoding" in request.headers or declared_bytes(request) > LARGE_BYTES
