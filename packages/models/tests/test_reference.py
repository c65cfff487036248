"""A model is compared with answers of another program, and the usual reasons of a difference are tried."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np
import openvino as ov
import pytest
from openvino import opset13

from deployments.repository.network import load
from deployments.repository.repository import find
from ensemble_models.check import __main__ as check
from ensemble_models.dataset import decode_all
from ensemble_models.prediction import preprocessing, runner
from ensemble_models.prepare import __main__ as prepare
from packages.models.tests.tiny import call
from scripts.errors import ScriptError

LABELS = ("left", "right", "both")
KNOWN = ("--channel-order", "RGB", "--normalize", "unit", "--precision", "FP32")


def sides() -> ov.Model:
    """Compares red in the left half with blue in the right half of an image."""
    image = opset13.parameter([-1, 3, 8, 8], ov.Type.f32)
    weights = np.zeros((3, 8, 8, 3), np.float32)
    weights[0, :, :4, 0], weights[2, :, 4:, 1], weights[1, 2:6, 2:6, 2] = 0.2, 0.2, 0.4
    flat = opset13.reshape(image, np.array([-1, 192]), False)
    return ov.Model([opset13.matmul(flat, weights.reshape(192, 3), False, False)], [image])


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Wide pictures of noise with stripes, without folders of classes."""
    folder, noise = tmp_path / "images", np.random.default_rng(0)
    folder.mkdir()
    for number in range(24):
        pixels = noise.integers(0, 256, (24, 48, 3)) // 2 + 96 * (np.arange(48) // 7 % 2 == number % 2)[None, :, None]
        cv2.imwrite(str(folder / f"{number}.png"), pixels.astype(np.uint8))
    return folder


def write(repository: Path, images: Path, file: Path, header: Sequence[str], *flags: object) -> Path:
    """Write the answers of the model that other flags make."""
    call(prepare.main, images.parent / "net.xml", "--name", "theirs", "--repository", repository, *KNOWN, *flags)
    model = find(repository, "theirs")
    paths = sorted(images.iterdir())
    pixels = decode_all([path.name for path in paths], [path.read_bytes() for path in paths], preprocessing(model))
    outputs = runner(load(model))(pixels)  # in the precision of this CPU
    with file.open("w", newline="") as stream:
        rows = csv.writer(stream)
        rows.writerow(["file", "label", *header])
        for path, row in zip(paths, outputs, strict=True):
            scores = row if len(header) == len(LABELS) else [row.max()][: len(header)]
            rows.writerow([path.name, LABELS[row.argmax()], *scores])
    return file


@pytest.mark.parametrize("header", [LABELS, ("probability",), ()])
def test_equal_answers_are_accepted_and_others_explained(
    header: Sequence[str], images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ov.save_model(sides(), tmp_path / "net.xml", compress_to_fp16=False)
    (tmp_path / "labels.txt").write_text("\n".join(LABELS))
    stretched = ("--resize", "stretch", "--interpolation", "bilinear")
    answers = write(tmp_path / "others", images, tmp_path / "answers.csv", header, *stretched)
    mine = ("--name", "mine", "--repository", tmp_path / "models", "--reference", answers, "--data", images, *KNOWN)
    capsys.readouterr()
    with pytest.raises(ScriptError, match=r"another way, crop: stretch 1: pass --resize stretch"):
        call(prepare.main, tmp_path / "net.xml", *mine, "--resize", "crop", "--interpolation", "bilinear")
    assert not (tmp_path / "models").exists()
    assert "most likely reason: crop: stretch 1" in capsys.readouterr().out
    call(prepare.main, tmp_path / "net.xml", *mine, *stretched)
    assert "100.00 % (" in capsys.readouterr().out
    repository = ("--repository", tmp_path / "models", "--members", "mine")
    call(check.main, *repository, "--data", images, "--reference", answers)
    assert "of the labels of 24 images agree" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("image,label\n0.png,left\n", "needs the columns file and label"),
        ("file,label\n0.png,cat\n", "answers 'cat', which is none of the 3 classes"),
        ("file,label\nx.png,left\n", r"has no images 'x\.png'"),
        ("file,label,left,right\n0.png,left,1,0\n", "a column for 2 of 3 classes"),
        ("file,label,probability\n0.png,left,much\n", "a probability is no number"),
    ],
)
def test_a_reference_that_does_not_fit_is_refused(content: str, message: str, images: Path, tmp_path: Path) -> None:
    ov.save_model(sides(), tmp_path / "net.xml")
    (tmp_path / "labels.txt").write_text("\n".join(LABELS))
    (tmp_path / "answers.csv").write_text(content)
    flags = ("--name", "m", "--repository", tmp_path / "models", "--reference", tmp_path / "answers.csv")
    with pytest.raises(ScriptError, match=message):
        call(prepare.main, tmp_path / "net.xml", *flags, "--data", images, *KNOWN)
