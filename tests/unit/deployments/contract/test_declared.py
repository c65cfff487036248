import io
from random import Random

import pytest
from PIL import Image

from deployments.contract.declared import PLAIN_PIXELS, is_plain, pixels
from scripts.lab.faults.hostile.bombs import BOMBS
from scripts.lab.faults.hostile.pictures import ANIMATED, FORMATS, animated, well_formed
from tests import pictures


@pytest.mark.parametrize("name", FORMATS)
def test_the_size_is_what_the_library_reads(name):
    for number in range(24):
        image = well_formed(name, Random(number))
        width, height = Image.open(io.BytesIO(image)).size
        assert pixels(image) == width * height
        assert is_plain(image) == ("jpeg" in name and "2000" not in name)


@pytest.mark.parametrize("name", ANIMATED)
def test_the_size_of_what_moves(name):
    assert pixels(animated(name, 3)) == 24 * 24


def test_a_jpeg_is_plain_up_to_some_size():
    assert is_plain(pictures.jpeg())
    assert is_plain(pictures.with_orientation(pictures.noise(), 6))
    assert is_plain(pictures.progressive(4000, PLAIN_PIXELS // 4000))
    assert not is_plain(pictures.progressive(4000, PLAIN_PIXELS // 4000 + 1))
    # Fill bytes and markers without a length may stand between segments.
    whole = pictures.jpeg()
    assert is_plain(whole[:2] + b"\xff\xff\xff\x01\xff\xd0" + whole[2:])


@pytest.mark.parametrize("image", [b"", b"\xff\xd8", b"\xff\xd8\xff", b"no", b"\x89PNG", b"P6", b"II*\0", b"RIFF"])
def test_what_says_nothing_has_no_pixels(image):
    assert pixels(image) == 0
    assert not is_plain(image)


@pytest.mark.parametrize("name", BOMBS)
def test_of_bombs_something_is_read(name):
    for number in range(30):
        assert pixels(BOMBS[name](Random(number))) >= 0


def test_a_name_at_the_end_of_what_is_looked_through():
    assert pixels(bytes(4091) + b"ispe") == 0
    assert pixels(b"ispe" + bytes(4) + (7).to_bytes(4) + (3).to_bytes(4)) == 21
