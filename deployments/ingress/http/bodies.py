"""Reads bodies within bounds: each byte counts at the ingress as it comes, a compressed one as it is sent."""

import json
import re
import sys
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any, NamedTuple, TypeVar

import msgspec
from starlette.requests import Request

from deployments.contract.caller import Caller
from deployments.contract.errors import ImageTooLarge, InvalidParameter, UnsupportedMediaType
from deployments.contract.options import Options
from deployments.ingress.admission import AdmissionController
from deployments.ingress.http.content_encoding import decoded
from deployments.ingress.options import DEFAULT
from deployments.ingress.settings import IngressSettings
from deployments.ingress.uploads import Upload

# A refused request that sends more than this, and could be sent again at once, waits for its turn.
LARGE_BYTES = 2**20
T = TypeVar("T")
# Python reads an integer in a time that grows with the square of its digits: 32 MiB of integers took a second.
sys.set_int_max_str_digits(sys.int_info.str_digits_check_threshold)
# Many clients send "application/octet-stream" for a file of unknown type, and curl declares every body a form.
IMAGE_TYPES = re.compile("(image/.*|application/(octet-stream|x-www-form-urlencoded))?")
FOR_JSON = "send JSON to /v2/models/ensemble/infer or /v1/models/ensemble:predict; or "
# In a request's scope, when all of its body has been read.
WHOLE = "ensemble.body.whole"


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


def media_type(headers: Mapping[str, str]) -> str:
    """Return the declared content type without its parameters, in small letters; empty if there is none."""
    return headers.get("content-type", "").partition(";")[0].strip().lower()


def no_image(declared: str) -> UnsupportedMediaType:
    """Make the error of a declared type that is none of `IMAGE_TYPES`."""
    elsewhere = FOR_JSON if declared == "application/json" else ""
    remedy = "send the file with Content-Type: image/jpeg (or what it is), or without one"
    return UnsupportedMediaType(f"{declared!r} is no image; {elsewhere}{remedy}")


async def bounded(
    request: Request, limit: Limit, admission: AdmissionController, arrival: Upload
) -> AsyncGenerator[bytes, None]:
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
            admission.arrived(arrival, len(chunk), received == declared)
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


async def document(
    request: Request,
    admission: AdmissionController,
    by: Caller,
    limit: Limit | None = None,
    json_bytes: int = sys.maxsize,
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
        asked: the options of the request's headers, which are known before its body.

    Raises:
        EnsembleError: as `AdmissionController.arriving` and `bounded`.
        InvalidParameter: it may have more elements than the settings allow; the rest is not read.
    """
    most, chunks, count = admission.settings.max_elements, [], 0
    async with admission.arriving(asked, by) as arrival:
        async for chunk in bounded(request, limit or of_request(admission.settings), admission, arrival):
            count += sum(map(chunk[:json_bytes].count, (b",", b"[", b"{")))
            if count > most:
                raise InvalidParameter(f"the JSON has more than {most} commas and opening brackets")
            json_bytes = max(0, json_bytes - len(chunk))
            chunks.append(chunk)
    return b"".join(chunks), arrival.began


def parsed(body: bytes, model: type[T], hint: str = "", mend: Callable[[Any], Any] = lambda content: content) -> T:
    """Parse a JSON document as a typed model, after `mend` has changed what the document contains.

    Raises:
        InvalidParameter: it does not fit the model; the message has the hint.
    """
    try:
        # Unlike msgspec's own decoder this one takes a text of half a character, which some clients send as an id.
        return msgspec.convert(mend(json.loads(body)), model)
    except (ValueError, RecursionError) as err:
        why = f"{err}; {hint}" if hint else str(err)
        raise InvalidParameter(f"the body is not the JSON object that is needed: {why}") from err


def has_large_rest(request: Request) -> bool:
    """Tell whether a request that was not read to its end declares more than `LARGE_BYTES`, or no length."""
    if WHOLE in request.scope:
        return False
    return "transfer-encoding" in request.headers or declared_bytes(request) > LARGE_BYTES
