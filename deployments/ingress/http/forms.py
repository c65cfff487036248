"""Reads the images of a form."""

from collections.abc import AsyncGenerator, AsyncIterator

from python_multipart.multipart import parse_options_header
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from deployments.contract.errors import EnsembleError, InvalidParameter
from deployments.ingress.admission import AdmissionController
from deployments.ingress.http.bodies import (
    IMAGE_TYPES,
    Limit,
    bounded,
    declared_bytes,
    media_type,
    no_image,
    of_request,
)
from deployments.ingress.http.content_encoding import MOST_AT_ONCE
from deployments.ingress.uploads import Upload

# What a form may have besides its images: with each image its headers, of which a long file name is the most.
FORM_OVERHEAD_BYTES, PART_OVERHEAD_BYTES = 64 * 1024, 1024
# A text field is no image, and its beginning is enough to say so.
MOST_OF_FIELD = 4096


class BoundedParser(MultiPartParser):
    """Starlette's parser for forms, with limits on the whole body and on each part, which are kept in memory."""

    def __init__(
        self, request: Request, admission: AdmissionController, limit: Limit, image: Limit, arrival: Upload
    ) -> None:
        """Set what bounds the number of parts, and the limits of the body and of an image."""
        most, content = admission.settings.max_parts, self._pieces(bounded(request, limit, admission, arrival))
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


async def images(
    request: Request, admission: AdmissionController, arrival: Upload, image: Limit
) -> list[bytes | EnsembleError]:
    """Read a form's images; a part that is larger than an image may be, or declares another type, gives its error.

    Raises:
        InvalidParameter: the form is malformed, or has other parts, or too many.
        ImageTooLarge: it exceeds the limit of its body.
        Overloaded: it exceeds the limit of bytes in flight.
    """
    limit = of_request(admission.settings)
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
