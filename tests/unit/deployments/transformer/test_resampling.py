import cv2
import numpy as np
import pytest
from PIL import Image

from deployments.contract.preprocessing import Preprocessing
from deployments.transformer import resampling
from deployments.transformer.decoding import Header, decode, read_header
from deployments.transformer.settings import TransformerSettings
from tests import pictures

FILTERS = {
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}
SIZES = [(375, 500), (500, 375), (256, 256), (257, 391), (224, 224), (100, 90), (61, 700), (1201, 900)]


@pytest.fixture(params=["rust", "pillow"])
def resize(request, monkeypatch):
    """The resampler with each library."""
    if request.param == "pillow":
        monkeypatch.setattr(resampling, "rust", None)
    elif resampling.rust is None:
        pytest.skip("there is no wheel of cykooz-resizer for this machine")
    return resampling.resize


def detailed(height, width):
    """A smooth picture with fine grain, such as a photograph has."""
    grain = np.random.default_rng(1).normal(0, 12, (height, width, 3))
    return np.clip(pictures.noise(height, width) + grain, 0, 255).astype(np.uint8)


def torchvisions(pixels, shorter, crop, method):
    """`Resize(shorter)` and `CenterCrop(crop)`, by torchvision's formulas for a PIL image."""
    image = Image.fromarray(pixels)
    width, height = image.size
    short, long = min(width, height), max(width, height)
    other = int(shorter * long / short)
    image = image.resize((shorter, other) if width <= height else (other, shorter), method)
    left, top = (round((side - crop) / 2.0) for side in image.size)
    return np.asarray(image.crop((left, top, left + crop, top + crop)))


def assert_equal(pixels, expected):
    """Compare with Pillow's: its own box differs by a level or two from its own whole image, in one of 100 pixels."""
    difference = np.abs(pixels.astype(int) - expected)
    assert (difference.max() <= 3, difference.mean() < 0.2) == (True, True), (difference.max(), difference.mean())


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("interpolation", FILTERS)
@pytest.mark.parametrize(("shorter", "crop"), [(256, 224), (232, 224), (224, 224), (342, 299)])
def test_a_crop_is_that_of_torchvision(resize, size, interpolation, shorter, crop):
    pixels = detailed(*size)
    wanted = Preprocessing((crop, crop), crop / shorter, interpolation=interpolation)
    assert_equal(resize(pixels, wanted), torchvisions(pixels, shorter, crop, FILTERS[interpolation]))


def test_a_crop_ratio_gives_the_size_before_the_crop_as_timm_rounds_it(resize):
    pixels = detailed(375, 500)
    for ratio, shorter in ((0.9, 248), (0.95, 235), (0.9655, 232), (0.875, 256)):
        expected = torchvisions(pixels, shorter, 224, Image.Resampling.BICUBIC)
        assert_equal(resize(pixels, Preprocessing((224, 224), ratio, interpolation="bicubic")), expected)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("interpolation", FILTERS)
def test_stretching_is_pillows(resize, size, interpolation):
    pixels = detailed(*size)
    expected = np.asarray(Image.fromarray(pixels).resize((192, 160), FILTERS[interpolation]))
    assert_equal(resize(pixels, Preprocessing((160, 192), resize="stretch", interpolation=interpolation)), expected)


def test_a_letterboxed_image_is_pillows_within_the_border(resize):
    pixels = detailed(100, 200)
    wanted = Preprocessing((64, 64), resize="letterbox", interpolation="bilinear", border=(1, 2, 3))
    boxed = resize(pixels, wanted)
    assert_equal(boxed[16:48], np.asarray(Image.fromarray(pixels).resize((64, 32), FILTERS["bilinear"])))
    assert boxed[[0, 15, 48, 63]].reshape(-1, 3).tolist() == [[1, 2, 3]] * 4 * 64


@pytest.mark.parametrize("size", [(32, 64), (64, 32)])
def test_a_crop_that_is_not_square_covers_its_size(resize, size):
    pixels = detailed(100, 100)
    wanted = Preprocessing(size, 0.5, interpolation="bilinear")
    whole = np.asarray(Image.fromarray(pixels).resize((128, 128), FILTERS["bilinear"]))
    top, left = ((128 - side) // 2 for side in size)
    assert_equal(resize(pixels, wanted), whole[top : top + size[0], left : left + size[1]])


@pytest.mark.parametrize("shape", [(1, 1), (1, 700), (700, 1), (2, 3)])
@pytest.mark.parametrize("kind", ["crop", "stretch", "letterbox"])
def test_the_smallest_images(resize, shape, kind):
    pixels = np.full((*shape, 3), 200, np.uint8)
    resized = resize(pixels, Preprocessing((32, 32), 0.875, kind, "bicubic"))
    assert resized.shape == (32, 32, 3)
    assert resized.max() == 200


@pytest.mark.parametrize("turn", [1, 6])
@pytest.mark.parametrize("size", [(1501, 2003), (1203, 901)])
def test_a_jpeg_decoded_at_a_smaller_scale_is_within_two_levels(resize, size, turn):
    """Its last row and column are of half a pixel, and it may be turned."""
    encoded = pictures.with_orientation(detailed(*size), turn)
    wanted = Preprocessing((112, 112), 0.875, interpolation="bilinear")
    header = read_header(encoded, TransformerSettings())
    assert header.scale([wanted]) > 1
    [pixels] = decode(encoded, header, [wanted]).pixels
    full = resize(cv2.imdecode(np.frombuffer(encoded, np.uint8), cv2.IMREAD_COLOR), wanted)
    assert np.abs(pixels.astype(int) - full).mean() < 1.1


def test_pillows_filters_leave_an_image_twice_as_large_as_needed():
    header = Header(2000, 2000, True)
    for interpolation, scale in (("area", 8), ("bilinear", 4), ("lanczos", 4)):
        assert header.scale([Preprocessing((224, 224), interpolation=interpolation)]) == scale


def test_the_memory_of_pillows_filters_is_counted_for_the_part_that_they_read():
    png = Header(3840, 2160, False, 6)
    crop, stretch = (
        Preprocessing((224, 224), 0.875, interpolation="bilinear"),
        Preprocessing((224, 224), resize="stretch", interpolation="bilinear"),
    )
    assert png.memory([crop]) == png.memory([]) == 6 * 3840 * 2160
    assert png.memory([crop, stretch]) == 9 * 3840 * 2160
