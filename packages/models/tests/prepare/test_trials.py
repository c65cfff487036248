"""Ways to prepare a model: few images first, and more for those that may be the best."""

from __future__ import annotations

import zipfile

import numpy as np

from deployments.contract.preprocessing import Preprocessing
from ensemble_models.dataset import Dataset
from ensemble_models.prepare import trials
from ensemble_models.prepare.trials import Trial
from packages.models.tests.tiny import SIZE, Draw, constant


def test_only_what_may_be_the_best_is_tried_on_all_images(draw: Draw) -> None:
    """Three models and 1,000 photographs took 265 s: eight normalizations ran on 500 images each."""
    dataset, way = Dataset.open(draw({"cat": 500})), Preprocessing(SIZE)
    encoded = [image for image, _ in dataset.read()]
    # Of a hundred images ninety are of class 1, eight of class 2, and two of class 0.
    labels = np.random.default_rng(0).choice(3, 500, p=[0.02, 0.9, 0.08])
    trial = Trial(dataset.names, encoded, labels, [way])
    tried = trial.race([(constant(np.eye(3)[answered]), way) for answered in (1, 0, 2, 1)])
    answers = [each.argmax(axis=1) for each in tried]
    assert [len(each) for each in answers] == [500, 25, 25, 500]
    assert [set(each) for each in answers] == [{1}, {0}, {2}, {1}]
    # One that is left is tried on no more than shows that it is better than guessing.
    assert [len(each) for each in trial.race([(constant(np.eye(3)[answered]), way) for answered in (1, 0)])] == [
        100,
        25,
    ]


def test_an_image_is_decoded_once_for_all_ways(draw: Draw, monkeypatch) -> None:
    with zipfile.ZipFile(draw({"cat": 1})) as archive:
        encoded, decoded = archive.read("cat/0.png"), []
    decode = trials.decode
    monkeypatch.setattr(trials, "decode", lambda name, *rest: decoded.append(name) or decode(name, *rest))
    ways = [Preprocessing(SIZE), Preprocessing((4, 4)), Preprocessing(SIZE, resize="stretch", crop_ratio=1.0)]
    images = Trial(["cat/0.png"], [encoded], np.zeros(1, np.int64), ways)
    assert [images.pixels(way, 0, 1).shape for way in (*ways, *ways)] == [(1, *way.size, 3) for way in (*ways, *ways)]
    assert decoded == ["cat/0.png"]
