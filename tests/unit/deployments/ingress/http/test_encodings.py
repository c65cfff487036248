import gzip
import random
import sys
import zlib

import pytest

from deployments.contract.errors import ImageTooLarge, InvalidParameter, UnsupportedMediaType
from deployments.ingress.admission import AdmissionController
from deployments.ingress.http.bodies import Limit, bounded
from deployments.ingress.http.content_encoding import FREE_BYTES, MOST_AT_ONCE, MOST_TIMES
from deployments.ingress.settings import IngressSettings

CONTENT = bytes(range(256)) * 4000


class Sent:
    """A request whose body comes in pieces."""

    def __init__(self, body, encoding, piece=1000):
        self.headers, self.scope = {"content-encoding": encoding}, {}
        self._pieces = [body[i : i + piece] for i in range(0, len(body), piece)]

    async def stream(self):
        for piece in self._pieces:
            yield piece
        yield b""


async def decoded(sent):
    admission = AdmissionController(IngressSettings())
    async with admission.arriving() as upload:
        async for chunk in bounded(sent, Limit(sys.maxsize), admission, upload):
            yield chunk


@pytest.mark.parametrize(("encoding", "pack"), [("gzip", gzip.compress), ("Deflate", zlib.compress), ("", bytes)])
@pytest.mark.parametrize("piece", [1, 1000, 10**7])
async def test_a_body_is_what_it_was(encoding, pack, piece):
    content = CONTENT if piece > 1 else CONTENT[:5000]
    pieces = [chunk async for chunk in decoded(Sent(pack(content), encoding, piece))]
    assert b"".join(pieces) == content
    if encoding:
        assert max(map(len, pieces)) <= MOST_AT_ONCE


PACKED = gzip.compress(CONTENT)


@pytest.mark.parametrize("body", [PACKED[:-1], PACKED + b"x", b"x" + PACKED, b""])
async def test_what_was_not_compressed_so_is_refused(body):
    with pytest.raises(InvalidParameter):
        [chunk async for chunk in decoded(Sent(body, "gzip"))]


async def test_what_comes_behind_the_end_is_not_read():
    came = []

    class Endless(Sent):
        async def stream(self):
            yield gzip.compress(b"x")
            while len(came) < 1000:
                came.append(1)
                yield b"behind"

    with pytest.raises(InvalidParameter, match="nothing else"):
        [chunk async for chunk in decoded(Endless(b"", "gzip"))]
    assert len(came) == 1


async def test_other_encodings_are_refused():
    with pytest.raises(UnsupportedMediaType):
        [chunk async for chunk in decoded(Sent(b"", "br"))]


@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress])
async def test_a_small_body_does_not_become_a_large_one(pack):
    encoding = "gzip" if pack is gzip.compress else "deflate"
    sent = Sent(pack(b"\xff\xd8" + b"\xff" * 4 * FREE_BYTES), encoding)
    became = []

    async def read():
        async for piece in decoded(sent):
            became.append(len(piece))

    with pytest.raises(ImageTooLarge, match="without Content-Encoding"):
        await read()
    assert sum(became) <= FREE_BYTES


async def test_a_large_body_may_become_larger():
    once = random.Random(0).randbytes(FREE_BYTES // 2)
    content = b"".join(once[i : i + 16384] * 2 for i in range(0, len(once), 16384)) + once
    packed = zlib.compress(content)
    assert FREE_BYTES < len(content) < MOST_TIMES * len(packed)
    assert b"".join([chunk async for chunk in decoded(Sent(packed, "deflate"))]) == content
