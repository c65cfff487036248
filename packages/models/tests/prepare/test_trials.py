"""Ways to prepare a model: few images first, and more for those that may be the best; and the order of the classes."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest

from deployments.contract.preprocessing import Preprocessing
from ensemble_models.dataset import Dataset
from ensemble_models.prepare.orders import assignment, usual_orders
from ensemble_models.prepare.source import Normalization
from ensemble_models.prepare.trial import Trial, Way, normalized
from ensemble_models.prepare.trials import better_fit
from packages.models.tests.tiny import LABELS, SIZE, Draw

WAY = Preprocessing(SIZE)


def test_only_what_may_be_the_best_is_tried_on_all_images(draw: Draw) -> None:
    """Three models and 1,000 photographs took 265 s: eight normalizations ran on 500 images each."""
    dataset = Dataset.open(draw({"cat": 500}))
    encoded = [image for image, _ in dataset.read()]
    # Of a hundred images ninety are of class 1, eight of class 2, and two of class 0.
    labels = np.random.default_rng(0).choice(3, 500, p=[0.02, 0.9, 0.08])

    def answer(pixels: np.ndarray) -> np.ndarray:
        """The class that the normalization's mean names."""
        return np.eye(3, dtype=np.float32)[np.round(-pixels.mean((1, 2, 3)) / 1000).astype(int)]

    trial = Trial(dataset.names, encoded, {"given": labels}, {"given": LABELS}, answer)
    by_class = [(Normalization("BGR", (1000.0 * number,) * 3, (1.0,) * 3), WAY) for number in (1, 0, 2, 1)]
    tried = trial.race(by_class)
    answers = [each.argmax(axis=1) for each in tried]
    assert [len(each) for each in answers] == [500, 25, 25, 500]
    assert [set(each) for each in answers] == [{1}, {0}, {2}, {1}]
    # One that is left is tried on no more than shows that it is better than guessing.
    assert [len(each) for each in trial.race(by_class[:2])] == [100, 25]


def test_pixels_are_normalized_in_the_order_of_the_channels() -> None:
    red = np.zeros((1, 2, 2, 3), np.uint8)
    red[..., 2] = 255
    imagenet = [normalized(red, Normalization.usual(order, "imagenet"))[0, 0, 0] for order in ("RGB", "BGR")]
    np.testing.assert_allclose(imagenet[0], [(1 - 0.485) / 0.229, -0.456 / 0.224, -0.406 / 0.225], rtol=1e-5)
    np.testing.assert_allclose(imagenet[1], imagenet[0][::-1], rtol=1e-5)
    caffe = normalized(red, Normalization.usual("BGR", "caffe"))[0, 0, 0]
    np.testing.assert_allclose(caffe, [-103.939, -116.779, 255 - 123.68], rtol=1e-5)


@pytest.mark.parametrize(
    ("folders", "orders"),
    [
        (["b", "a"], {"alphabetical": "a b"}),
        (["10", "9", "1"], {"alphabetical": "1 10 9", "natural": "1 9 10"}),
        (["b", "A", "C"], {"alphabetical": "A C b", "case-blind": "A b C"}),
        (["c", "b", "a"], {"alphabetical": "a b c", "that of other": "c a b"}),
    ],
)
def test_the_usual_orders_are_each_listed_once(folders: list[str], orders: dict[str, str]) -> None:
    others = [("other", ("c", "a", "b")), ("another", ("x", "y"))]
    found = usual_orders(folders, others)
    assert {name: " ".join(labels) for name, labels in found.items()} == orders


def test_an_assignment_is_judged_by_images_that_did_not_choose_it() -> None:
    random = np.random.default_rng(0)
    labels = random.integers(0, 6, 300)
    shuffled = np.array([3, 1, 0, 2, 5, 4])
    answers = np.where(random.random(300) < 0.7, shuffled[labels], random.integers(0, 6, 300))
    found = assignment(answers, labels, 6)
    assert found is not None
    assert [int(found[0][output]) for output in shuffled] == [0, 1, 2, 3, 4, 5]
    assert found[1].mean > 40
    # The right order, and one image of each of many classes, whose assignment would fit any answers.
    assert assignment(labels, labels, 6) is None
    assert assignment(random.integers(0, 300, 300), np.arange(300), 300) is None


@pytest.mark.parametrize("wrong", [3, 8])
def test_a_better_normalization_is_found_by_the_images_that_are_wrong(draw: Draw, wrong: int) -> None:
    """The first 50 of 200 images are right: no image after them was looked at, and 96 % were accepted."""
    dataset = Dataset.open(draw({"cat": 200}))
    encoded = [image for image, _ in dataset.read()]
    labels = np.zeros(200, np.int64)
    chosen = Normalization.usual("RGB", "symmetric")
    better = Normalization("RGB", (0.5,) * 3, (0.8,) * 3)

    class Told(Trial):
        def predicted(self, way: Way, rows: Iterable[int]) -> np.ndarray:
            answers = np.array([int(row >= 200 - wrong and way[0] != better) for row in rows])
            return np.eye(3, dtype=np.float32)[answers]

    trial = Told(dataset.names, encoded, {"given": labels}, {"given": LABELS}, lambda _: np.empty(0))
    # Fewer images than show anything are left as they are.
    assert better_fit(trial, chosen, WAY) == (None if wrong < 4 else better)
