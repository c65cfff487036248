import gzip
import zlib

import pytest

from deployments.contract.errors import InvalidParameter, UnsupportedMediaType
from deployments.ingress.http.encodings import MOST_AT_ONCE, decoded

CONTENT = bytes(range(256)) * 4000


class Sent:
    """A request whose body comes in pieces."""

    def __init__(self, body, encoding, piece=1000):
        self.headers = {"content-encoding": encoding}
        self._pieces = [body[i : i + piece] for i in range(0, len(body), piece)]

    async def stream(self):
        for piece in self._pieces:
            yield piece
        yield b""


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


async def test_other_encodings_are_refused():
    with pytest.raises(UnsupportedMediaType):
        [chunk async for chunk in decoded(Sent(b"", "br"))]
