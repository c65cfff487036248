import io
import struct
from random import Random

import pytest
from PIL import Image

from deployments.contract.image_probe import (
    MOST_FILL,
    MOST_SEGMENTS,
    PLAIN_BYTES,
    PLAIN_PIXELS,
    PLAIN_SCANS,
    Jpeg,
    probe,
    read_jpeg,
)
from lab.faults.fuzz.images import ANIMATED, BOMBS, FORMATS, animated, well_formed
from tests import pictures


def pixels(image):
    return probe(image).pixels


def is_plain(image):
    return probe(image).is_plain


class Looked(bytes):
    """Bytes that count how often a part of them is taken."""

    parts = 0

    def __getitem__(self, key):
        Looked.parts += 1
        return super().__getitem__(key)


@pytest.mark.parametrize("name", FORMATS)
def test_the_size_is_what_the_library_reads(name):
    for number in range(24):
        image = well_formed(name, number)
        width, height = Image.open(io.BytesIO(image)).size
        assert pixels(image) == width * height
        assert is_plain(image) == ("jpeg" in name and "2000" not in name)


def test_data_that_looks_like_the_marker_of_a_size_is_no_size():
    whole = well_formed("jpeg 2000", 0)
    assert pixels(whole + b"\xff\x51" + b"\xff" * 40) == pixels(whole) == 33 * 47
    # A decoder would take this one.
    assert pixels(whole + struct.pack(">HHH8IH", 0xFF51, 41, 0, 30_000, 20_000, *[0] * 6, 1)) == 600_000_000


@pytest.mark.parametrize("name", ANIMATED)
def test_the_size_of_what_moves(name):
    assert pixels(animated(name, 3)) == 24 * 24


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize(("kind", "form"), [(3, "H6x"), (4, "I4x"), (16, "Q")])
def test_the_size_of_a_bigtiff(order, kind, form):
    entries = [struct.pack(f"{order}HHQ{form}", tag, kind, 1, side) for tag, side in ((256, 30), (257, 20))]
    magic = {"<": b"II+\0", ">": b"MM\0+"}[order]
    whole = magic + struct.pack(f"{order}HHQQ", 8, 0, 16, len(entries)) + b"".join(entries)
    assert pixels(whole) == 600
    for cut in range(len(whole)):
        assert pixels(whole[:cut]) in {0, 600}
    # The directory is where no index leads.
    assert pixels(whole[:8] + b"\xff" * 8 + whole[16:]) == 0


def test_the_size_that_pillow_writes_into_a_bigtiff():
    file = io.BytesIO()
    Image.new("L", (30, 20)).save(file, "TIFF", big_tiff=True)
    assert pixels(file.getvalue()) == 600


@pytest.mark.parametrize("begins", [b"P5\n# version 1.1\n30 20\n255\n", b"P6 30 # 7\r\n20 255 ", b"P4#1\n#2\n30 20\n"])
def test_comments_are_no_size(begins):
    assert pixels(begins) == 600


def test_a_jpeg_is_plain_up_to_some_size():
    assert is_plain(pictures.jpeg())
    assert is_plain(pictures.with_orientation(pictures.noise(), 6))
    for extra in (0, 1):
        assert is_plain(pictures.progressive(1000, PLAIN_PIXELS // 1000 + extra, progressive=False)) == (not extra)
        # Of 4:2:0 libjpeg keeps 3 bytes for each pixel.
        assert is_plain(pictures.progressive(512, PLAIN_BYTES // 3 // 512 + extra)) == (not extra)
    # Fill bytes and markers without a length may stand between segments.
    whole = pictures.jpeg()
    assert is_plain(whole[:2] + b"\xff\xff\xff\x01\xff\xd0" + whole[2:])


def test_a_jpeg_is_plain_up_to_some_scans():
    whole = pictures.progressive(500, 500)
    scans, last = whole.count(b"\xff\xda"), whole[whole.rindex(b"\xff\xda") : -2]
    assert is_plain(whole[:-2] + last * (PLAIN_SCANS - scans) + whole[-2:])
    many = probe(whole[:-2] + last * (PLAIN_SCANS - scans + 1) + whole[-2:])
    assert (many.is_plain, many.isolated_pixels) == (False, 500 * 500)
    # Scans are not counted in a file that is large for so few pixels.
    assert is_plain(whole + bytes(PLAIN_BYTES - len(whole)))
    assert not is_plain(whole + bytes(PLAIN_BYTES - len(whole) + 1))


def test_a_jpeg_that_is_decoded_at_a_smaller_scale_costs_less():
    costs = [probe(pictures.progressive(2000, 1000, progressive=each)).isolated_pixels for each in (True, False)]
    assert costs == [2_000_000, 250_000]
    assert probe(pictures.jpeg()).isolated_pixels == 0
    assert probe(pictures.bomb(2000)).isolated_pixels == 4_000_000


@pytest.mark.parametrize("image", [b"", b"\xff\xd8", b"\xff\xd8\xff", b"no", b"\x89PNG", b"P6", b"II*\0", b"RIFF"])
def test_what_says_nothing_has_no_pixels(image):
    assert pixels(image) == 0
    assert not is_plain(image)


@pytest.mark.parametrize("name", BOMBS)
def test_of_bombs_something_is_read(name):
    for number in range(10):
        assert pixels(BOMBS[name](Random(number))) >= 0


def test_a_name_at_the_end_of_what_is_looked_through():
    assert pixels(bytes(4091) + b"ispe") == 0
    assert pixels(b"ispe" + bytes(4) + (7).to_bytes(4) + (3).to_bytes(4)) == 21


WHOLE = pictures.jpeg()


@pytest.mark.parametrize(
    "more", [b"\xff\xe1\x00\x02" * 2_000_000, b"\xff" * 31_000_000, bytes(31_000_000), b"\xff\x00" * 15_000_000]
)
def test_a_bounded_part_of_a_jpeg_is_looked_at(more, monkeypatch):
    monkeypatch.setattr(Looked, "parts", 0)
    # Before the frame's header, and behind it.
    start = WHOLE.index(b"\xff\xda")
    for image in (WHOLE[:2] + more + WHOLE[2:], WHOLE[:start] + more + WHOLE[start:]):
        assert probe(Looked(image))[:2] == (0, False)
    assert Looked.parts <= 2 * MOST_SEGMENTS


def test_what_cameras_write_is_looked_through():
    segments = b"".join(b"\xff\xe2" + (65_535).to_bytes(2) + bytes(65_533) for _ in range(255))
    found = probe(WHOLE[:2] + segments + WHOLE[2:])
    assert (found.jpeg, found.is_plain, found.is_quick) == (probe(WHOLE).jpeg, True, False)
    assert probe(WHOLE) == (160 * 120, True, 0, Jpeg(160, 120), True)
    assert read_jpeg(WHOLE[:2] + bytes(MOST_FILL) + WHOLE[2:]) == Jpeg(160, 120)
    assert read_jpeg(WHOLE[:2] + bytes(MOST_FILL + 1) + WHOLE[2:]) is None


@pytest.mark.parametrize(
    ("mode", "options", "kept"),
    [
        ("RGB", {}, 3),
        ("RGB", {"subsampling": 0}, 6),
        ("L", {}, 2),
        ("CMYK", {}, 8),
        ("RGB", {"progressive": False}, 0),
        ("L", {"progressive": False}, 0),
    ],
)
def test_what_a_decoder_keeps_of_a_jpeg(mode, options, kept):
    assert read_jpeg(pictures.progressive(200, 100, mode, **options)) == Jpeg(200, 100, kept * 200 * 100)


def test_a_scan_of_its_own_for_each_component_is_kept_as_well():
    whole = pictures.progressive(200, 100, progressive=False)
    scan = whole.index(b"\xff\xda")
    assert read_jpeg(whole[: scan + 4] + b"\x01" + whole[scan + 5 :]).kept == 3 * 200 * 100
