"""Hostile forms (`multipart/form-data`)."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from lab.faults.hostile.inputs import Input, request
from lab.faults.hostile.mutations import mutated, truncated
from lab.faults.hostile.pictures import well_formed

NAMES = (b"image", b"Image", b"", b"image\0", b"\xff\xfe", "größe".encode(), b"i" * 5000, b'im"age', b"image;x=1")
BOUNDARIES = (
    b"b",
    b"",
    b"x" * 69,
    b"x" * 300,
    b"\xff\xfe",
    b'"quoted"',
    b"--",
    b"a b",
    b"\r\n",
    b"b; charset=undefined",
)
CHARSETS = ("undefined", "utf-7", "idna", "punycode", "rot13", "\xff", "", "zlib", "unicode_escape")


def part(name: bytes, content: bytes, filename: bytes | None = b"x", more: bytes = b"") -> bytes:
    """A part without its boundary."""
    file = b"" if filename is None else b'; filename="%b"' % filename
    return b'\r\nContent-Disposition: form-data; name="%b"%b\r\n%b\r\n%b\r\n' % (name, file, more, content)


def form(parts: list[bytes], boundary: bytes = b"b") -> bytes:
    """A form of these parts."""
    return b"".join(b"--" + boundary + each for each in parts) + b"--" + boundary + b"--\r\n"


def _sent(
    kind: str, body: bytes, declared: bytes = b"multipart/form-data; boundary=b", length: int | None = None
) -> Input:
    content = request("POST", "/classify", {"Content-Type": declared}, body, length=length)
    return Input(kind, content, whole=length is None)


def _image(rng: Random) -> bytes:
    return well_formed(rng.choice(("jpeg", "png")), rng)


def _damaged(rng: Random) -> Input:
    body = form([part(b"image", _image(rng)) for _ in range(rng.randrange(1, 4))])
    return _sent("forms: damaged", rng.choice((mutated, truncated))(body, rng))


def _names(rng: Random) -> Input:
    names = [rng.choice(NAMES) for _ in range(rng.randrange(1, 4))]
    filename = rng.choice((None, b"x", b"", b"\xff\xff", b"../../etc/passwd", b"x" * 10_000, b"\0"))
    return _sent("forms: odd names", form([part(name, _image(rng), filename) for name in names]))


def _boundaries(rng: Random) -> Input:
    boundary = rng.choice(BOUNDARIES)
    body = form([part(b"image", _image(rng))], rng.choice((boundary, b"other")))
    return _sent("forms: odd boundary", body, b"multipart/form-data; boundary=" + boundary)


def _parts(rng: Random) -> Input:
    filename = rng.choice((None, b"x"))
    return _sent("forms: many parts", form([part(b"image", b"", filename)] * rng.choice((63, 65, 1000, 20_000))))


def _headers(rng: Random) -> Input:
    more = rng.choice(
        (
            b"X: " + b"y" * rng.choice((5_000, 200_000)) + b"\r\n",
            b"X: y\r\n" * rng.choice((100, 5_000)),
            b"Content-Type: image/jpeg; charset=\xff\r\n",
            b"Content-Transfer-Encoding: base64\r\n",
            b"Content-Type: multipart/mixed; boundary=c\r\n",
            b": \r\n",
            b"no colon\r\n",
            b"\0: \0\r\n",
        )
    )
    return _sent("forms: odd headers in a part", form([part(b"image", _image(rng), more=more)]))


def _charsets(rng: Random) -> Input:
    declared = f"multipart/form-data; boundary=b; charset={rng.choice(CHARSETS)}".encode("latin-1")
    body = form([part("bild ü".encode(), b"words", None), part(b"image", _image(rng))])
    return _sent("forms: odd charset", body, declared)


def _lengths(rng: Random) -> Input:
    body = form([part(b"image", _image(rng))])
    return _sent(
        "forms: longer or shorter than it says", body, length=max(0, len(body) + rng.choice((-20, -1, 1, 5_000)))
    )


FORMS: tuple[Callable[[Random], Input], ...] = (
    _damaged,
    _damaged,
    _damaged,
    _names,
    _boundaries,
    _parts,
    _headers,
    _charsets,
    _lengths,
)
