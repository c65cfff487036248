import io
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from deployments.contract.errors import ImageTooLarge, InvalidImage
from deployments.contract.preprocessing import Preprocessing
from deployments.transformer.decoding import MOST_SCANS, decode, inspect
from deployments.transformer.transformer import TransformerSettings
from tests import pictures

LIMITS = TransformerSettings(max_image_pixels=10_000)
WHOLE = pictures.progressive(100, 50)
SCANS = WHOLE.count(b"\xff\xda")
LAST = WHOLE[WHOLE.rindex(b"\xff\xda") : -2]


@given(st.integers(0, 200), st.integers(1, 100), st.integers(1, 100), st.integers(0, 3))
def test_a_jpeg_of_more_work_than_that_of_the_largest_image_is_refused(more, width, height, fill):
    # Any number of fill bytes may stand before a marker.
    content = WHOLE[:-2] + (b"\xff" * fill + LAST) * more + WHOLE[-2:]
    frame = content.index(b"\xff\xc2") + 5
    content = content[:frame] + struct.pack(">HH", height, width) + content[frame + 4 :]
    if (SCANS + more) * width * height > MOST_SCANS * LIMITS.max_image_pixels:
        with pytest.raises(ImageTooLarge, match=f"{SCANS + more} scans of {width} x {height}"):
            inspect(content, LIMITS)
    else:
        header = inspect(content, LIMITS)
        assert (header.width, header.height, header.is_jpeg) == (width, height, True)


def test_a_gif_whose_table_of_codes_is_full_is_decoded():
    out = io.BytesIO()
    whole = Image.new("P", (2000, 2000), 7)
    whole.putpalette([0] * 21 + [10, 20, 30])
    whole.save(out, "GIF")
    limits = TransformerSettings()
    [pixels] = decode(out.getvalue(), inspect(out.getvalue(), limits), [Preprocessing((8, 8))])
    assert pixels.tolist() == [[[30, 20, 10]] * 8] * 8
    cut = out.getvalue()[: len(out.getvalue()) // 2]
    with pytest.raises(InvalidImage, match="truncated or damaged"):
        decode(cut, inspect(cut, limits), [Preprocessing((8, 8))])


@given(st.sampled_from(["JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM", "JPEG2000"]), st.data())
def test_any_damage_is_read_or_the_images_fault(name, data):
    out = io.BytesIO()
    Image.new("RGB", (12, 9)).save(out, name)
    damaged = bytearray(out.getvalue())
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, min(len(damaged), 200) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(damaged)))
    try:
        header = inspect(bytes(damaged[:cut]), LIMITS)
    except (InvalidImage, ImageTooLarge):
        return
    assert 0 < header.width * header.height <= LIMITS.max_image_pixels
    assert header.memory >= header.width * header.height
