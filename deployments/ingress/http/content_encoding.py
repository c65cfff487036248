"""Undoes the `Content-Encoding` of a body within bounds."""

import zlib
from collections.abc import AsyncGenerator

from starlette.requests import Request

from deployments.contract.errors import ImageTooLarge, InvalidParameter, UnsupportedMediaType
from deployments.contract.settings import MIB

# zlib's `wbits` for each encoding: the window's size, and 16 more for gzip's header.
WINDOWS = {"gzip": 16 + zlib.MAX_WBITS, "x-gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
MOST_AT_ONCE = 64 * 1024
# How many times as large a body may become, or how many bytes where that is more. An image takes five times its bytes
# until it is refused; these keep that below 8 bytes for each byte sent, and 64 MB.
MOST_TIMES, FREE_BYTES = 3, 8 * MIB
NOT_ALL = "the body is not what {} compressed in one piece, all of it and nothing else"


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
