"""Bodies that are compressed for the way: decoded piece by piece, so that a small one can't become large unseen."""

from __future__ import annotations

import zlib
from collections.abc import AsyncGenerator

from starlette.requests import Request

from deployments.contract.errors import ImageTooLarge, InvalidParameter, UnsupportedMediaType
from deployments.contract.settings import MIB

# What zlib is told of each encoding: the window's size, and 16 more for gzip's header.
WINDOWS = {"gzip": 16 + zlib.MAX_WBITS, "x-gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
MOST_AT_ONCE = 64 * 1024
# A body may become so many times as large, or of so many bytes where that is more. An image takes five times its bytes
# until it is refused; these keep that below 8 bytes for each byte sent, and 64 MB.
MOST_TIMES, FREE_BYTES = 3, 8 * MIB


async def decoded(request: Request) -> AsyncGenerator[bytes, None]:
    """The request's body as it was before `Content-Encoding`, in pieces of at most 64 KiB if it was compressed.

    Raises:
        UnsupportedMediaType: the encoding is another than gzip or deflate.
        InvalidParameter: the body is not compressed as it declares, or only a part of it.
        ImageTooLarge: it becomes too large for what was sent.
    """
    encoding = request.headers.get("content-encoding", "").strip().lower()
    if encoding in {"", "identity"}:
        async for chunk in request.stream():
            yield chunk
        return
    if encoding not in WINDOWS:
        raise UnsupportedMediaType(f"Content-Encoding {encoding[:40]!r} is not known; send gzip, deflate or none")
    decoder = zlib.decompressobj(WINDOWS[encoding])
    came = became = 0
    try:
        async for chunk in request.stream():
            came += len(chunk)
            most = max(FREE_BYTES, MOST_TIMES * came)
            piece = decoder.decompress(chunk, MOST_AT_ONCE)
            while piece:
                if (became := became + len(piece)) > most:
                    raise ImageTooLarge(
                        f"the body becomes more than {MOST_TIMES} times as large as what was sent, and more than "
                        f"{FREE_BYTES} bytes; send it without Content-Encoding, or an image as PNG or JPEG"
                    )
                yield piece
                full = len(piece) == MOST_AT_ONCE
                piece = decoder.decompress(decoder.unconsumed_tail, MOST_AT_ONCE) if full else b""
    except zlib.error as err:
        raise InvalidParameter(f"the body is not compressed by {encoding}: {err}") from err
    if not decoder.eof or decoder.unused_data:
        raise InvalidParameter(f"the body is not what {encoding} compressed, all of it and nothing else")
