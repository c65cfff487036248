import io
import threading
import time

import cv2
import numpy as np
import pytest
from msgspec.structs import replace
from PIL import Image

from deployments.contract.batch import Batch, made
from deployments.contract.errors import ConfigurationError, DeadlineExceeded, ImageTooLarge, InvalidImage
from deployments.contract.item import Item
from deployments.contract.payload import Decoded, Deferred
from deployments.contract.preprocessing import AsSent, Preprocessing
from deployments.transformer import decoding
from deployments.transformer.decoding import decode, read_header
from deployments.transformer.transformer import JpegTransformer, TransformerSettings
from tests import pictures
from tests.batches import batch, errors, notes

LIMITS = TransformerSettings()
WANTED = {"small": Preprocessing((16, 16))}


def decoded(encoded, size=(32, 32), crop_ratio=1.0, limits=LIMITS):
    [pixels] = decode(encoded, read_header(encoded, limits), [Preprocessing(size, crop_ratio)]).pixels
    return pixels


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
@pytest.mark.parametrize(("kind", "side"), [("JPEG", 40), ("JPEG", 800), ("PNG", 40), ("WEBP", 40), ("AVIF", 40)])
def test_orientation_is_honoured(orientation, kind, side):
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
    result = decoded(pictures.with_orientation(np.ascontiguousarray(stored), orientation, kind))
    assert result[:, :8].mean() > 200
    assert result[:, -8:].mean() < 55


def test_grey_becomes_colour():
    result = decoded(pictures.encode(pictures.noise()[:, :, 0]))
    assert result.shape == (32, 32, 3)
    assert np.ptp(result.astype(int), axis=2).max() == 0


@pytest.mark.parametrize("suffix", [".png", ".tiff"])
def test_alpha_is_dropped(suffix):
    pixels = np.dstack([pictures.grey(90), np.full((64, 64), 10, np.uint8)])
    assert decoded(pictures.encode(pixels, suffix)).tolist() == pictures.grey(90, 32, 32).tolist()


def test_pixels_of_floating_point_numbers_are_refused_as_such():
    file = io.BytesIO()
    Image.fromarray(np.full((8, 8), 0.5, np.float32)).save(file, "TIFF")
    with pytest.raises(InvalidImage, match="floating-point numbers; save it with 8 or 16 bits"):
        decoded(file.getvalue())


def test_sixteen_bits_become_eight():
    pixels = np.full((40, 40), 32768, np.uint16)
    assert decoded(pictures.encode(pixels, ".png")).max() == 128


@pytest.mark.parametrize("kind", ["P2", "P3", "P5", "P6"])
@pytest.mark.parametrize("white", [1, 15, 100, 255, 256, 1023, 4095, 65_535])
def test_the_maximum_of_a_pgm_and_a_ppm_is_white(kind, white):
    for level, expected in ((white, 255), (white // 2, white // 2 * 255 / white), (0, 0)):
        numbers = np.full(4 * (3 if kind in {"P3", "P6"} else 1), level)
        binary = numbers.astype(np.uint8 if white < 256 else ">u2").tobytes()
        content = " ".join(map(str, numbers)).encode() if kind in {"P2", "P3"} else binary
        pixels = decoded(f"{kind}\n# 7\n2 2\n{white}\n".encode() + content)
        assert np.abs(pixels - expected).max() <= 1


@pytest.mark.parametrize("content", [b"P5 2 2 255\n123", b"P2 2 2 255\n1 2 3", b"P5#" + bytes(5000) + b"\n2 1 9\n12"])
def test_a_pgm_that_lacks_pixels_or_whose_header_is_long_is_refused(content):
    with pytest.raises(InvalidImage):
        decoded(content)


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


def test_an_image_may_not_become_larger_than_the_ingress_reads_it():
    transformer = JpegTransformer(TransformerSettings(max_image_bytes=2048), WANTED, 1)
    transformer.check(TransformerSettings(max_image_bytes=1024))
    with pytest.raises(ConfigurationError, match="is 2048 from the start; deploy it with more in `args`"):
        transformer.check(TransformerSettings(max_image_bytes=4096))


def test_a_bomb_is_refused_before_it_is_decoded(monkeypatch):
    monkeypatch.setattr(cv2, "imdecode", lambda *_: pytest.fail("the pixels were decoded"))
    with pytest.raises(ImageTooLarge, match="20000 x 20000"):
        decoded(pictures.bomb())


def scans(encoded):
    """Where the scans of a JPEG begin."""
    return [position for position in range(len(encoded)) if encoded.startswith(b"\xff\xda", position)]


def test_a_jpeg_of_a_thousand_scans_is_refused_before_it_is_decoded(monkeypatch):
    whole = pictures.progressive(4000, 3000)
    assert len(scans(whole)) == 10
    assert decoded(whole).shape[-1] == 3
    last = whole[scans(whole)[-1] : -2]
    bomb = whole[:-2] + last * 1000 + whole[-2:]
    monkeypatch.setattr(cv2, "imdecode", lambda *_: pytest.fail("the pixels were decoded"))
    with pytest.raises(ImageTooLarge, match="1010 scans of 4000 x 3000"):
        decoded(bomb)


async def test_bad_images_fail_alone():
    encoded = [pictures.encode(pictures.grey(level), ".png") for level in (10, 20, 30, 40, 50)]
    encoded[1], encoded[3] = b"no image", encoded[3][:60]
    answer = await JpegTransformer(LIMITS, WANTED, threads=2)(batch(encoded))
    assert {position: type(error) for position, error in errors(answer).items()} == {1: InvalidImage, 3: InvalidImage}
    assert answer.live == [0, 2, 4]
    assert answer.payload["small"].dtype == np.uint8
    assert answer.payload["small"][:, 0, 0, 0].tolist() == [10, 30, 50]
    assert [note.node for note in notes(answer)] == ["decode"]
    assert [item.image_size for item in answer.items] == [(64, 64), None, (64, 64), None, (64, 64)]


async def test_a_batch_of_bad_images_has_no_pixels():
    answer = await JpegTransformer(LIMITS, WANTED, threads=2)(batch([b"", b""]))
    assert answer.payload["small"].shape == (0, 16, 16, 3)


async def test_expired_requests_are_not_decoded(monkeypatch):
    monkeypatch.setattr(cv2, "imdecode", lambda *_: pytest.fail("an expired image was decoded"))
    late = Item(deadline=time.time() - 1)
    answer = await JpegTransformer(LIMITS, WANTED, threads=1)(batch([pictures.jpeg()], late))
    assert isinstance(errors(answer)[0], DeadlineExceeded)


def test_a_header_that_a_parser_trips_over_is_an_error_of_the_image():
    with pytest.raises(InvalidImage):
        decoded(b"DDS " + (124).to_bytes(4, "little") + bytes(72) + b"\x04\0\0\0ABCD" + bytes(40))


async def test_an_unforeseen_failure_is_the_images_own(monkeypatch):
    def trip(encoded, *_):
        if encoded == images[1]:
            raise ZeroDivisionError
        return Decoded([np.zeros((16, 16, 3), np.uint8)], (160, 120))

    images = [pictures.jpeg(seed=seed) for seed in range(3)]
    monkeypatch.setattr(decoding, "read_header", lambda *_: decoding.Header(16, 16, True))
    monkeypatch.setattr(decoding, "decode", trip)
    answer = await JpegTransformer(LIMITS, WANTED, threads=1)(batch(images))
    assert {position: type(error) for position, error in errors(answer).items()} == {1: InvalidImage}


async def test_each_preprocessing_has_pixels_of_its_own_and_the_image_is_decoded_once(monkeypatch):
    seen = []
    imdecode = cv2.imdecode
    monkeypatch.setattr(cv2, "imdecode", lambda *args: seen.append(1) or imdecode(*args))
    wanted = {"small": Preprocessing((16, 16)), "wide": Preprocessing((20, 40), resize="stretch")}
    answer = await JpegTransformer(LIMITS, wanted, threads=1)(batch([pictures.jpeg(), pictures.jpeg(seed=1)]))
    assert {key: pixels.shape for key, pixels in answer.payload.items()} == {
        "small": (2, 16, 16, 3),
        "wide": (2, 20, 40, 3),
    }
    assert len(seen) == 2


def stripes(height=60, width=120):
    """Three upright stripes, black, white and black, the white one as wide as the picture is high."""
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[:, (width - height) // 2 : (width + height) // 2] = 255
    return pictures.encode(pixels, ".png")


def resized(encoded, **wanted):
    [pixels] = decode(encoded, read_header(encoded, LIMITS), [Preprocessing(**wanted)]).pixels
    return pixels


def test_stretching_keeps_everything_and_letterboxing_the_aspect_too():
    assert resized(stripes(), size=(32, 32)).min() == 255
    stretched = resized(stripes(), size=(32, 32), resize="stretch")
    assert (stretched[:, :6].max(), stretched[:, 10:22].min(), stretched[:, -6:].max()) == (0, 255, 0)
    boxed = resized(stripes(), size=(32, 32), resize="letterbox", border=(1, 2, 3))
    assert boxed[:8].reshape(-1, 3).tolist() == [[1, 2, 3]] * 8 * 32
    assert boxed[24:].reshape(-1, 3).tolist() == [[1, 2, 3]] * 8 * 32
    assert (boxed[8:24, :6].max(), boxed[8:24, 10:22].min()) == (0, 255)


@pytest.mark.parametrize("turn", [0, 1])
def test_the_side_that_shrinks_is_averaged_where_the_other_grows(turn):
    lines = np.zeros((16, 320, 3), np.uint8)
    lines[:, ::10] = 250
    pixels = resized(pictures.encode(np.rot90(lines, turn), ".png"), size=(32, 32), resize="stretch")
    assert (pixels.min(), pixels.max()) == (25, 25)


@pytest.mark.parametrize(("interpolation", "method"), [("linear", 1), ("cubic", 2), ("nearest", 0), ("area", 3)])
def test_interpolation_is_opencvs(interpolation, method):
    pixels = pictures.noise(64, 64)
    expected = cv2.resize(pixels, (24, 24), interpolation=method)
    np.testing.assert_array_equal(
        resized(pictures.encode(pixels, ".png"), size=(24, 24), interpolation=interpolation), expected
    )


def test_a_preprocessing_is_known_by_all_that_decides_its_pixels():
    different = [
        Preprocessing((16, 16)),
        Preprocessing((16, 32)),
        Preprocessing((16, 16), 0.875),
        Preprocessing((16, 16), resize="stretch"),
        Preprocessing((16, 16), interpolation="cubic"),
        Preprocessing((16, 16), resize="letterbox"),
        Preprocessing((16, 16), resize="letterbox", border=(1, 1, 1)),
    ]
    assert len({preprocessing.key for preprocessing in different}) == len(different)


@pytest.mark.parametrize("wanted", [{}, WANTED])
async def test_images_as_they_were_sent_go_on_if_they_can_be_decoded(wanted):
    images = [pictures.jpeg(64, 48, 1), b"no image", pictures.jpeg(640, 480)[:9000], pictures.jpeg(32, 32, 2)]
    node = JpegTransformer(LIMITS, {"encoded": AsSent(), **wanted}, 2)
    answer = await node(batch(images))
    assert answer.payload["encoded"] == [images[0], images[3]]
    assert set(answer.payload) == {"encoded", *wanted}
    assert {position: type(error) for position, error in errors(answer).items()} == {1: InvalidImage, 2: InvalidImage}
    assert answer.items[0].image_size == (48, 64)


@pytest.mark.parametrize(
    ("images", "in_threads"),
    [
        ([pictures.jpeg(224, 224)], False),
        ([pictures.jpeg(224, 224), pictures.jpeg(224, 224, seed=1)], True),
        ([pictures.jpeg(375, 500)], True),
        ([pictures.progressive(224, 224)], True),
    ],
)
async def test_a_small_jpeg_that_is_alone_wakes_no_thread(images, in_threads):
    before = set(threading.enumerate())
    answer = await JpegTransformer(LIMITS, WANTED, threads=1)(batch(images))
    assert not errors(answer)
    assert bool(set(threading.enumerate()) - before) is in_threads


BOTH = {"small": Preprocessing((16, 16)), "large": Preprocessing((48, 32), 0.9, interpolation="bilinear")}
# Of every way to decode: in threads, in a process, at a smaller scale.
SEVERAL = [
    pictures.jpeg(120, 160),
    pictures.encode(pictures.noise(seed=1), ".png"),
    b"no image",
    pictures.jpeg(480, 640, 2),
    pictures.jpeg(300, 300, 3),
]


def deferring(threads=2):
    transformer = JpegTransformer(LIMITS, BOTH, threads)
    transformer.defer_others({"small"})
    return transformer


@pytest.mark.parametrize("positions", [[0, 1, 2, 3, 4], [4, 1], [3], [2], []])
async def test_deferred_pixels_are_those_that_would_have_been_made(positions):
    """At once, they are made of the images that are left."""
    eager = await JpegTransformer(LIMITS, BOTH, threads=2)(batch(SEVERAL))
    answer = await deferring()(batch(SEVERAL))
    np.testing.assert_array_equal(answer.payload["small"], eager.payload["small"])
    left, expected = answer.split(positions), eager.split(positions)
    assert isinstance(left.payload["large"], Deferred)
    later = await made(Batch(left.payload["large"], left.items))
    np.testing.assert_array_equal(later.payload, expected.payload["large"])
    assert all([step.note.node for step in later.items[row].steps] == ["decode", "resize"] for row in later.live)


async def test_deferred_pixels_of_parts_are_joined_and_those_of_late_images_not_made():
    answer = await deferring()(batch(SEVERAL))
    parts = [([4, 0], answer.split([4, 0])), ([1, 2, 3], answer.split([1, 2, 3]))]
    joined = Batch.join(parts)
    items = [replace(item, deadline=time.time() - 1) if place == 3 else item for place, item in enumerate(joined.items)]
    later = await made(Batch(joined.payload["large"], tuple(items)))
    expected = (await JpegTransformer(LIMITS, BOTH, threads=2)(batch(SEVERAL))).split([0, 1, 4])
    np.testing.assert_array_equal(later.payload, expected.payload["large"])
    assert set(errors(later)) == {2, 3}
