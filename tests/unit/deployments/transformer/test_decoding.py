import io
import struct
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from deployments.contract.errors import ImageTooLarge, InvalidImage
from deployments.contract.preprocessing import Preprocessing
from deployments.transformer.decoding import MAX_SCANS, NO_END, decode, read_header
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
    if (SCANS + more) * width * height > MAX_SCANS * LIMITS.max_image_pixels:
        with pytest.raises(ImageTooLarge, match=f"{SCANS + more} scans of {width} x {height}"):
            read_header(content, LIMITS)
    else:
        header = read_header(content, LIMITS)
        assert (header.width, header.height, header.is_jpeg) == (width, height, True)


def test_a_gif_whose_table_of_codes_is_full_is_decoded():
    out = io.BytesIO()
    whole = Image.new("P", (2000, 2000), 7)
    whole.putpalette([0] * 21 + [10, 20, 30])
    whole.save(out, "GIF")
    limits = TransformerSettings()
    [pixels] = decode(out.getvalue(), read_header(out.getvalue(), limits), [Preprocessing((8, 8))]).pixels
    assert pixels.tolist() == [[[30, 20, 10]] * 8] * 8
    cut = out.getvalue()[: len(out.getvalue()) // 2]
    with pytest.raises(InvalidImage, match="truncated or damaged"):
        decode(cut, read_header(cut, limits), [Preprocessing((8, 8))])


@given(st.sampled_from(["JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM", "JPEG2000"]), st.data())
def test_any_damage_is_read_or_the_images_fault(name, data):
    out = io.BytesIO()
    Image.new("RGB", (12, 9)).save(out, name)
    damaged = bytearray(out.getvalue())
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, min(len(damaged), 200) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(damaged)))
    try:
        header = read_header(bytes(damaged[:cut]), LIMITS)
    except (InvalidImage, ImageTooLarge):
        return
    assert 0 < header.width * header.height <= LIMITS.max_image_pixels
    assert header.memory([Preprocessing((8192, 8192))]) >= header.width * header.height


# Decodes files that the arguments name, and prints for each the growth of the peak of its memory beyond what is due.
MEASURE = """
import sys
import tracemalloc
from pathlib import Path
from deployments.contract.preprocessing import Preprocessing
from deployments.transformer.decoding import decode, read_header
from deployments.transformer.transformer import TransformerSettings

def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))

limits, wanted = TransformerSettings(max_image_bytes=2**25), [Preprocessing((224, 224))]
for name in sys.argv[1:]:
    content = Path(name).read_bytes()
    header = read_header(content, limits)
    Path("/proc/self/clear_refs").write_text("5")
    before = peak()
    decode(content, header, wanted)
    print(Path(name).stem, peak() - before - header.memory(wanted))
"""


def test_decoding_takes_no_more_memory_than_a_header_says(tmp_path):
    side, noise = 2000, pictures.noise(2000, 2000)
    flat = Image.fromarray(noise)
    cases = {
        "png": {},
        "apng": {"format": "PNG", "save_all": True, "append_images": [flat.rotate(90)]},
        "webp": {"quality": 80},
        "moving webp": {"format": "WEBP", "save_all": True, "append_images": [flat.rotate(90)]},
        "gif": {},
        "bmp": {},
        "ppm": {},
        "tiff": {"compression": "tiff_lzw"},
        "strip": {"format": "TIFF", "compression": "tiff_deflate", "strip_size": 2**30},
        "jp2": {"format": "JPEG2000"},
        "avif": {"speed": 10, "subsampling": "4:4:4"},
        "jpeg": {},
        "progressive": {"format": "JPEG", "progressive": True, "subsampling": 0},
    }
    for name, options in cases.items():
        flat.save(tmp_path / f"{name}.image", **({"format": name.upper()} | options))
    files = [tmp_path / f"{name}.image" for name in ("png", *cases)]
    done = subprocess.run([sys.executable, "-c", MEASURE, *files], capture_output=True, text=True, check=True)
    # What the first one takes once, and what libraries keep; a byte for each pixel is twice as much.
    excess = dict(line.rsplit(" ", 1) for line in done.stdout.splitlines()[1:])
    assert len(excess) == len(cases)
    assert {name: more for name, more in excess.items() if int(more) > side * side} == {}


USUAL = TransformerSettings()
LACKING = {
    "JPEG": (pictures.jpeg(), (1, 2)),
    "grey JPEG": (pictures.encode(pictures.noise()[:, :, 0], ".jpg"), (1, 2)),
    "PNG": (pictures.encode(pictures.noise(), ".png"), (5, 8, 11, 12)),
}


def made(encoded):
    return decode(encoded, read_header(encoded, USUAL), [Preprocessing((32, 32))])


@pytest.mark.parametrize(("whole", "cuts"), LACKING.values(), ids=LACKING)
def test_a_file_that_lacks_its_end_marker_alone_is_decoded_with_a_warning(whole, cuts):
    expected = made(whole)
    assert expected.warning == ""
    for cut in cuts:
        found = made(whole[:-cut])
        assert found.warning == NO_END
        assert found.pixels[0].tolist() == expected.pixels[0].tolist()


def test_of_a_file_that_lacks_its_end_marker_one_image_at_a_time_is_in_memory():
    tracemalloc.start()
    try:
        made(pictures.encode(pictures.noise(2000, 2000), ".jpg")[:-2])
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # NumPy reports what OpenCV's images take.
    assert most < 1.7 * 2000 * 2000 * 3


@pytest.mark.parametrize(("whole", "cuts"), LACKING.values(), ids=LACKING)
@pytest.mark.parametrize("more", [4, 30, 500])
def test_a_file_that_lacks_pixels_is_refused(whole, cuts, more):
    with pytest.raises(InvalidImage, match="truncated or damaged"):
        made(whole[: -max(cuts) - more])


OTHERS = {
    "HEIF": b"\0\0\0\x18ftypheic\0\0\0\0mif1heic",
    "JPEG XL": b"\xff\x0a\xfa\x0f",
    "a JPEG XL": b"\0\0\0\x0cJXL \r\n\x87\n",
    "SVG": b"<?xml version='1.0'?>\n<!-- drawn -->\n<svg xmlns='http://www.w3.org/2000/svg'/>",
    "PDF": b"%PDF-1.7",
    "ICO": b"\0\0\1\0\1\0",
    "TIFF": pictures.encode(np.zeros((8, 8, 3), np.float32), ".tiff"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_another_format_is_named_and_what_is_read_too(name):
    with pytest.raises(InvalidImage, match=f"{name}.*; send a JPEG, PNG, .* JPEG 2000 or AVIF file"):
        read_header(OTHERS[name], USUAL)


def test_a_tiff_of_large_numbers_is_refused_as_such():
    file = io.BytesIO()
    Image.fromarray(np.zeros((8, 8), np.int32)).save(file, "TIFF")
    with pytest.raises(InvalidImage, match="numbers of 32 bits; save it with 8 or 16 bits"):
        read_header(file.getvalue(), USUAL)
