"""Reads bodies within bounds: each byte counts at the ingress as it comes."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from typing import NamedTuple, TypeVar

import msgspec
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from deployments.contract.caller import Caller
from deployments.contract.errors import EnsembleError, ImageTooLarge, InvalidParameter, UnsupportedMediaType
from deployments.contract.options import Options
from deployments.ingress.admission import AdmissionController, Upload
from deployments.ingress.http.encodings import decoded
from deployments.ingress.options import DEFAULT
from deployments.ingress.settings import IngressSettings

# Many clients send "application/octet-stream" for a file of unknown type, and curl declares every body a form.
UNDECLARED = frozenset({"", "application/octet-stream", "application/x-www-form-urlencoded"})
FORM_OVERHEAD_BYTES = 64 * 1024
# A refused request that sends more than this, and could be sent again at once, waits for its turn.
LARGE_BYTES = 2**20
# A text field is no image, and its beginning is enough to say so.
MOST_OF_FIELD = 4096
BASE64 = "an image is standard base64 (with + and /), without line breaks"
T = TypeVar("T")
# In a request's scope, when all of its body has been read.
WHOLE = "ensemble.body.whole"


class Limit(NamedTuple):
    """The most bytes of a body, and the setting that says so."""

    most: int
    setting: str = ""

    def error(self, what: str) -> ImageTooLarge:
        """Make the error of a body that exceeds the limit."""
        return ImageTooLarge(f"{what}; at most {self.most} are accepted{self.setting and f' ({self.setting})'}")


def of_request(settings: IngressSettings) -> Limit:
    """Return the limit of any body."""
    return Limit(settings.max_request_bytes, "ingress.max_request_bytes")


def of_image(settings: IngressSettings, max_image_bytes: int) -> Limit:
    """Return the limit of a body that is one image."""
    return min(Limit(max_image_bytes, "transformer.max_image_bytes"), of_request(settings))


class BoundedParser(MultiPartParser):
    """Starlette's parser for forms, with limits on the whole body and on each part, which are kept in memory."""

    def __init__(
        self, request: Request, capacity: AdmissionController, limit: Limit, image: Limit, arrival: Upload
    ) -> None:
        """Set what bounds the number of parts, and the limits of the body and of an image."""
        most, content = capacity.settings.max_parts, bounded(request, limit, arrival)
        super().__init__(request.headers, content, max_files=most, max_fields=most, max_part_size=MOST_OF_FIELD)
        self.spool_max_size, self._most = limit.most, image.most + 1
        self._capacity, self._parts, self._kept, self._is_ended = capacity, 0, 0, False

    def on_part_begin(self) -> None:
        """Count a part, whatever it is; raise InvalidParameter if it is one image too many."""
        super().on_part_begin()
        self._parts, self._kept = self._parts + 1, 0
        self._capacity.check_count(self._parts)

    def on_part_data(self, data: bytes, start: int, end: int) -> None:
        """Keep what comes of a part, up to one byte more than an image may have."""
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


def check_image_type(declared: str) -> None:
    """Raise UnsupportedMediaType for a declared type other than an image's."""
    if declared not in UNDECLARED and not declared.startswith("image/"):
        raise UnsupportedMediaType(
            f"{declared!r} is no image; send the file with Content-Type: image/jpeg (or what it is), or without one"
        )


async def bounded(request: Request, limit: Limit, arrival: Upload) -> AsyncGenerator[bytes, None]:
    """Yield the request's body, chunk by chunk.

    Raises:
        ImageTooLarge: it exceeds the limit.
        Overloaded: it exceeds what is admitted.
        UnsupportedMediaType: its encoding is unknown.
        InvalidParameter: it is not compressed as it declares.
    """
    received, expected = 0, _declared(request)
    async for chunk in decoded(request):
        received += len(chunk)
        if received > limit.most:
            raise limit.error("the request has more bytes")
        arrival.grow(len(chunk), received == expected)
        yield chunk
    request.scope[WHOLE] = True


async def body(request: Request, limit: Limit, arrival: Upload) -> bytes:
    """Read the whole body; raise as `bounded` does, and before reading if the body declares too many bytes."""
    _check_declared_length(request, limit)
    # A body that came in one piece is not copied; its last chunk is empty.
    return b"".join([chunk async for chunk in bounded(request, limit, arrival) if chunk])


async def document(
    request: Request,
    capacity: AdmissionController,
    by: Caller,
    limit: Limit | None = None,
    is_json: bool = True,
    image: Limit | None = None,
    asked: Options = DEFAULT,
) -> tuple[bytes, float]:
    """Admit a request, and read its whole body, a JSON document; also when it began to arrive, as `Upload` has it.

    To parse millions of elements would hold the event loop for seconds and take a hundred times their bytes. A comma or
    a bracket within a text counts too; base64 has none.

    Args:
        request: the request.
        capacity: admits it.
        by: who sends it.
        limit: its limit; default: that of any body.
        is_json: whether elements are counted.
        image: the limit of each image, if the JSON has images in base64.
        asked: the options of the request's headers, which are known before its body.

    Raises:
        EnsembleError: as `AdmissionController.arriving` and `body`.
        ImageTooLarge: a text is longer than an image's; what has not arrived yet is not read.
        InvalidParameter: it may have more elements than the settings allow; what has not arrived yet is not read.
    """
    settings, chunks, elements, text = capacity.settings, [], 0, 0
    limit = limit or of_request(settings)
    async with capacity.arriving(asked, by) as arrival:
        _check_declared_length(request, limit)
        async for chunk in bounded(request, limit, arrival):
            if is_json:
                elements += check_elements(chunk, settings.max_elements, elements)
            if is_json and image is not None:
                text = check_text(chunk, image, text)
            if chunk:
                chunks.append(chunk)
    return b"".join(chunks), arrival.began


def parsed(body: bytes, model: type[T]) -> T:
    """Parse a JSON document as a typed model; raise InvalidParameter if the document does not fit the model."""
    try:
        # Unlike msgspec's own decoder this one takes a text of half a character, which some clients send as an id.
        return msgspec.convert(json.loads(body), model)
    except (ValueError, RecursionError) as err:
        hint = f"; {BASE64}" if "base64" in str(err) else ""
        raise InvalidParameter(f"the body is not the JSON object that is needed: {err}{hint}") from err


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


async def images(
    request: Request, capacity: AdmissionController, arrival: Upload, max_image_bytes: int
) -> list[bytes | EnsembleError]:
    """Read a body's images: one, or a form's; a part that is too large or declares another type gives its error.

    Raises:
        UnsupportedMediaType: the body declares another type.
        InvalidParameter: the form is malformed, or has other parts, or too many.
        ImageTooLarge: it exceeds the limits.
        Overloaded: it exceeds what is admitted.
    """
    declared, settings = media_type(request.headers), capacity.settings
    image = of_image(settings, max_image_bytes)
    if declared != "multipart/form-data":
        check_image_type(declared)
        return [await body(request, image, arrival)]
    limit = of_request(settings)
    limit = limit._replace(most=limit.most + FORM_OVERHEAD_BYTES)
    _check_declared_length(request, limit)
    try:
        form = await BoundedParser(request, capacity, limit, image, arrival).parse()
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
    try:
        check_image_type(media_type(part.headers))
    except UnsupportedMediaType as err:
        return err
    content = await part.read()
    return limit.error("the image has more bytes") if len(content) > limit.most else content


def is_whole(request: Request) -> bool:
    """Tell whether a request's whole body has been read."""
    return WHOLE in request.scope


def has_large_rest(request: Request) -> bool:
    """Tell whether a request that was not read to its end declares more than `LARGE_BYTES`, or no length."""
    if is_whole(request):
        return False
    return "transfer-encoding" in request.headers or _declared(request) > LARGE_BYTES


def _check_declared_length(request: Request, limit: Limit) -> None:
    if (declared := _declared(request)) > limit.most:
        raise limit.error(f"the request declares {declared} bytes")


def _declared(request: Request) -> int:
    """Return the number of bytes that a request declares; -1 if it declares none."""
    declared = request.headers.get("content-length", "")
    # Thousands of zeros may stand before them, and Python reads no number of so many digits.
    return int(declared.lstrip("0") or "0") if declared.isdecimal() else -1
