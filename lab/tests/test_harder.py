import sys

import cv2
import numpy as np
import pytest

from ensemble_models.dataset import Dataset
from lab.harder import harder, main


def test_nothing_asked_leaves_an_image_as_it_is():
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 3), np.uint8)
    np.testing.assert_array_equal(harder(pixels, 1.0, 0.0, 0.0, np.random.default_rng(1)), pixels)


@pytest.mark.parametrize(
    ("how", "statistic", "grows"),
    [((0.2, 0.0, 0.0), np.std, False), ((1.0, 3.0, 0.0), np.std, False), ((1.0, 0.0, 60.0), np.std, True)],
    ids=["contrast", "blur", "noise"],
)
def test_each_way_changes_an_image_as_it_says(how, statistic, grows):
    pixels = np.full((32, 32, 3), 128, np.uint8) if grows else np.tile(np.uint8([[[0] * 3, [255] * 3]]), (32, 16, 1))
    changed = harder(pixels, *how, np.random.default_rng(1))
    assert (statistic(changed) > statistic(pixels)) == grows
    assert changed.dtype == np.uint8


def test_a_zip_file_of_them_has_the_same_names_and_the_same_seed_draws_the_same(draw, tmp_path, monkeypatch):
    source = draw({"cat": 2, "dog": 1})
    contents = []
    for seed in ("0", "0", "1"):
        target = tmp_path / "harder.zip"
        monkeypatch.setattr(sys, "argv", ["harder", str(source), str(target), "--seed", seed])
        main()
        made = Dataset.open(target)
        assert made.names == ("cat/0.jpg", "cat/1.jpg", "dog/0.jpg")
        contents.append([encoded for encoded, _ in made.read()])
    assert contents[0] == contents[1] != contents[2]
    assert cv2.imdecode(np.frombuffer(contents[0][0], np.uint8), cv2.IMREAD_COLOR).shape == (8, 8, 3)


def test_what_makes_no_image_is_a_usage_error(draw, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["harder", str(draw({"cat": 1})), str(tmp_path / "x.zip"), "--contrast", "0"])
    with pytest.raises(SystemExit):
        main()
    assert "--contrast is above 0" in capsys.readouterr().err
