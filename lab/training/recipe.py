"""The recipe of a training run, which decides the result; its fields are flags of `ensemble train`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from lab.flags import at_least_zero, flag, fraction
from scripts.errors import positive

Augmentation = Literal["shift", "zoom"]
Mix = Literal["none", "cutmix", "mixup", "either"]
Architecture = Literal["resnet", "resnet13", "densenet", "student"]
TeacherLoss = Literal["hinton", "dist"]


@dataclass(frozen=True)
class Recipe:
    """What decides the result of a training run, recorded with the model.

    Attributes:
        architecture: a name in `architectures.ARCHITECTURES`.
        momentum: of the convolutions' optimizer.
        sgd_momentum: of the biases' and the last layer's optimizer.
        weight_decay: of biases and the last layer, for an image.
    """

    architecture: str
    augmentation: str = flag(
        "shift",
        "`shift` translates and cuts out; `zoom` also zooms and changes contrast and brightness",
        choices=get_args(Augmentation),
    )
    epochs: int = flag(24, "passes over the images", type=positive)
    seed: int = flag(1, "of everything random", type=int)
    batch_size: int = flag(2000, "images in a step", type=positive)
    forward_batch_size: int = flag(
        500, "images that go through the network at once; batch norm sees no more", type=positive
    )
    learning_rate: float = flag(0.24, "of the convolutions, at first; it falls linearly to 0", type=float)
    momentum: float = 0.6
    bias_learning_rate: float = flag(0.053, "of biases, at first", type=float)
    head_learning_rate: float = flag(0.67, "of the last layer, at first", type=float)
    sgd_momentum: float = 0.85
    weight_decay: float = 2e-6
    label_smoothing: float = flag(0.2, "the share of each target that is spread over all classes", type=fraction)
    translate_px: int = flag(3, "pixels, at most", "--translate", type=int)
    cutout_px: int = flag(6, "the cut square's side, pixels", "--cutout", type=int)
    zoom: float = flag(0.1, "fraction, at most", type=fraction)
    contrast: float = flag(0.1, "fraction, at most, of contrast and of brightness", type=fraction)
    mix: str = flag(
        "none", "how images are mixed with each other; `either`: half of them by each", choices=get_args(Mix)
    )
    mix_probability: float = flag(0.5, "the fraction of images that is mixed", type=fraction)
    mixtures: int = flag(
        0,
        "mixtures of all images to make beforehand; teachers answer each once; 0: mix each batch anew",
        type=at_least_zero,
    )
    hold_out: int = flag(0, "images to leave out, and to compare candidates on", type=at_least_zero)
    teachers: tuple[str, ...] = flag(
        (), "models whose answers are learnt besides the labels", nargs="+", metavar="NAME"
    )
    # The bundled models were trained with smoothed labels, and are soft without it.
    temperature: float = flag(1.0, "to which the teachers' and the student's answers are softened", type=float)
    teacher_loss: str = flag(
        "hinton",
        "the teachers' probabilities are learnt, or by `dist` their correlations between and within classes",
        choices=get_args(TeacherLoss),
    )
    width: float = flag(1.0, "of the student: multiplies its channels", type=float)
    teacher_weight: float = flag(0.9, "the teachers' share in the loss; the labels have the rest", type=fraction)

    def to_json(self) -> dict[str, Any]:
        """Return the recipe as it is recorded, and comes back from JSON."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}
