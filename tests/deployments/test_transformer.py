import time

import cv2
import numpy as np
import pytest

from deployments.transformer import JpegTransformer, decode, inspect
from graph.batch import Batch, Request
from graph.config import TransformerSettings
from graph.errors import DeadlineExceeded, ImageTooLarge, InvalidImage
from tests import pictures

LIMITS = TransformerSettings()


def decoded(encoded, size=(32, 32), crop_ratio=1.0, limits=LIMITS):
    return decode(encoded, inspect(encoded, limits), size, crop_ratio)


def test_a_picture_of_the_right_size_stays_as_it_is():
    pixels = pictures.noise(32, 32)
    np.testing.assert_array_equal(decoded(pictures.encode(pixels, ".png")), pixels)


def test_result_is_bgr():
    blue = np.zeros((64, 64, 3), np.uint8)
    blue[:, :, 0] = 255
    assert decoded(pictures.encode(blue, ".png"))[0, 0].tolist() == [255, 0, 0]


@pytest.mark.parametrize("shape", [(100, 300), (300, 100)])
def test_the_centre_is_cropped_and_the_aspect_kept(shape):
    height, width = shape
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[(height - 100) // 2 : (height + 100) // 2, (width - 100) // 2 : (width + 100) // 2] = 255
    assert decoded(pictures.encode(pixels, ".png")).min() == 255


def test_crop_ratio_keeps_its_share_of_the_shorter_side():
    pixels = np.zeros((256, 256, 3), np.uint8)
    pixels[16:240, 16:240] = 200
    result = decoded(pictures.encode(pixels, ".png"), (224, 224), 0.875)
    assert result.shape == (224, 224, 3)
    assert result.min() == 200


def test_crop_ratio_matches_resize_then_crop():
    pixels = pictures.noise(512, 640)
    resized = cv2.resize(pixels, (320, 256), interpolation=cv2.INTER_AREA)[16:240, 48:272]
    result = decoded(pictures.encode(pixels, ".png"), (224, 224), 0.875)
    assert np.abs(result.astype(int) - resized).mean() < 1


def test_a_target_that_is_not_square():
    assert decoded(pictures.jpeg(300, 300), (20, 40)).shape == (20, 40, 3)


@pytest.mark.parametrize("factor", [2, 4, 8])
def test_reduced_decoding_answers_what_full_decoding_does(factor):
    pixels = pictures.noise(64 * factor, 96 * factor)
    full = decoded(pictures.encode(pixels, ".png"), (64, 64))
    reduced = decoded(pictures.encode(pixels), (64, 64))
    assert np.abs(full.astype(int) - reduced).mean() < 3


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("side", [40, 800])
def test_exif_orientation_is_honoured(orientation, side):
    """A picture brighter at its left, stored turned so that the tag turns it back."""
    upright = np.repeat(np.linspace(255, 0, side).astype(np.uint8)[None, :, None], side, 0).repeat(3, 2)
    stored = {
        1: upright,
        2: upright[:, ::-1],
        3: upright[::-1, ::-1],
        4: upright[::-1],
        5: upright.transpose(1, 0, 2),
        6: np.rot90(upright, 1),
        7: upright[::-1, ::-1].transpose(1, 0, 2),
        8: np.rot90(upright, -1),
    }[orientation]
    result = decoded(pictures.with_orientation(np.ascontiguousarray(stored), orientation))
    assert result[:, :8].mean() > 200
    assert result[:, -8:].mean() < 55


def test_grey_becomes_colour():
    result = decoded(pictures.encode(pictures.noise()[:, :, 0]))
    assert result.shape == (32, 32, 3)
    assert np.ptp(result.astype(int), axis=2).max() == 0


def test_alpha_is_dropped():
    pixels = np.dstack([pictures.grey(90), np.full((64, 64), 10, np.uint8)])
    assert decoded(pictures.encode(pixels, ".png")).tolist() == pictures.grey(90, 32, 32).tolist()


def test_sixteen_bits_become_eight():
    pixels = np.full((40, 40), 32768, np.uint16)
    assert decoded(pictures.encode(pixels, ".png")).max() == 128


@pytest.mark.parametrize("suffix", [".png", ".webp", ".bmp", ".tiff"])
def test_other_formats(suffix):
    assert decoded(pictures.encode(pictures.grey(120), suffix)).mean() == pytest.approx(120, abs=2)


@pytest.mark.parametrize("suffix", [".jpg", ".png", ".webp", ".bmp"])
@pytest.mark.parametrize("quarter", [0.25, 0.5, 0.75, 0.98])
def test_truncated_images_are_errors(suffix, quarter):
    encoded = pictures.encode(pictures.noise(480, 640), suffix)
    with pytest.raises(InvalidImage):
        decoded(encoded[: int(len(encoded) * quarter)])


@pytest.mark.parametrize("garbage", [b"", b"\xff\xd8\xff", b"GIF89a", b"<html></html>", bytes(range(256)) * 40])
def test_garbage_is_an_error(garbage):
    with pytest.raises(InvalidImage):
        decoded(garbage)


def test_too_many_bytes():
    limits = TransformerSettings(max_image_bytes=1024)
    with pytest.raises(ImageTooLarge, match="at most 1024"):
        decoded(pictures.jpeg(480, 640), limits=limits)


def test_a_bomb_is_refused_before_it_is_decoded(monkeypatch):
    monkeypatch.setattr(cv2, "imdecode", lambda *_: pytest.fail("the pixels were decoded"))
    with pytest.raises(ImageTooLarge, match="20000 x 20000"):
        decoded(pictures.bomb())


async def test_bad_images_fail_alone():
    encoded = [pictures.encode(pictures.grey(level), ".png") for level in (10, 20, 30, 40, 50)]
    encoded[1], encoded[3] = b"no image", encoded[3][:60]
    transformer = JpegTransformer(LIMITS, (16, 16), 1.0, threads=2)
    batch = await transformer(Batch(encoded, [Request("") for _ in encoded]))
    assert {position: type(error) for position, error in batch.errors.items()} == {1: InvalidImage, 3: InvalidImage}
    assert batch.live == [0, 2, 4]
    assert batch.payload.dtype == np.uint8
    assert batch.payload[:, 0, 0, 0].tolist() == [10, 30, 50]
    assert [timing.node for timing in batch.timings] == ["decode"]


async def test_a_batch_of_bad_images_has_no_pixels():
    batch = await JpegTransformer(LIMITS, (16, 16), 1.0, threads=2)(Batch([b"", b""], [Request(""), Request("")]))
    assert batch.payload.shape == (0, 16, 16, 3)


async def test_expired_requests_are_not_decoded(monkeypatch):
    monkeypatch.setattr(cv2, "imdecode", lambda *_: pytest.fail("an expired image was decoded"))
    transformer = JpegTransformer(LIMITS, (16, 16), 1.0, threads=1)
    batch = await transformer(Batch([pictures.jpeg()], [Request("", deadline=time.time() - 1)]))
    assert isinstance(batch.errors[0], DeadlineExceeded)


def test_a_header_that_a_parser_trips_over_is_an_error_of_the_image():
    with pytest.raises(InvalidImage):
        decoded(b"DDS " + (124).to_bytes(4, "little") + bytes(72) + b"\x04\0\0\0ABCD" + bytes(40))


async def test_an_unforeseen_failure_is_the_images_own(monkeypatch):
    import deployments.transformer as module

    def trip(encoded, *_):
        if encoded == b"trip":
            raise ZeroDivisionError
        return np.zeros((16, 16, 3), np.uint8)

    monkeypatch.setattr(module, "inspect", lambda *_: module.Header(16, 16, False))
    monkeypatch.setattr(module, "decode", trip)
    transformer = JpegTransformer(LIMITS, (16, 16), 1.0, threads=1)
    batch = await transformer(Batch([b"a", b"trip", b"b"], [Request("") for _ in range(3)]))
    assert {position: type(error) for position, error in batch.errors.items()} == {1: InvalidImage}
