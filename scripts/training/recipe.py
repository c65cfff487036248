"""What decides the result of a training run."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Augmentation = Literal["shift", "zoom"]
Mix = Literal["none", "cutmix", "mixup", "either"]
Architecture = Literal["resnet", "densenet", "student"]


@dataclass(frozen=True)
class Recipe:
    """What decides the result of a training run, recorded with the model.

    Attributes:
        architecture: a name in `architectures.ARCHITECTURES`.
        augmentation: `shift` translates and cuts out; `zoom` also zooms and changes contrast and brightness.
        epochs: passes over the images.
        seed: of everything random.
        batch_size: images in a step.
        forward_batch_size: images that go through the network at once; batch norm sees no more.
        learning_rate: of the convolutions, at first; it falls linearly to 0.
        momentum: of the convolutions' optimizer.
        bias_learning_rate: of biases, at first.
        head_learning_rate: of the last layer, at first.
        sgd_momentum: of the biases' and the last layer's optimizer.
        weight_decay: of biases and the last layer, for an image.
        label_smoothing: the share of each target that is spread over all classes.
        translate_px: pixels, at most.
        cutout_px: the cut square's side, pixels.
        zoom: fraction, at most.
        contrast: fraction, at most, of contrast and of brightness.
        mix: how images of a batch are mixed with each other; with `either` half of them by each of the two.
        mix_probability: the fraction of images that is mixed.
        mixtures: how many times all images are mixed beforehand, for all epochs; 0 if each batch is mixed anew.
        hold_out: how many images are left out, to compare candidates on; see `Dataset.hold_out`.
        teachers: the models whose answers are learnt besides the labels; see `teachers`.
        temperature: to which the teachers' and the student's answers are softened for comparing them.
        teacher_weight: the teachers' share in the loss; the labels have the rest.
    """

    architecture: str
    augmentation: str
    epochs: int
    seed: int
    batch_size: int = 2000
    forward_batch_size: int = 500
    learning_rate: float = 0.24
    momentum: float = 0.6
    bias_learning_rate: float = 0.053
    head_learning_rate: float = 0.67
    sgd_momentum: float = 0.85
    weight_decay: float = 2e-6
    label_smoothing: float = 0.2
    translate_px: int = 3
    cutout_px: int = 6
    zoom: float = 0.1
    contrast: float = 0.1
    mix: str = "none"
    mix_probability: float = 0.5
    mixtures: int = 0
    hold_out: int = 0
    teachers: tuple[str, ...] = ()
    # The models in the box were trained with smoothed labels, and are soft without it.
    temperature: float = 1.0
    teacher_weight: float = 0.9


def to_json(recipe: Recipe) -> dict[str, Any]:
    """The recipe as it is recorded, and comes back from JSON."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(recipe).items()}
