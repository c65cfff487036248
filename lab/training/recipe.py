"""The recipe of a training run, which decides the result; its fields are flags of `ensemble train`."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, get_args

import click

from ensemble_models.options import COUNT, POSITIVE, SHARE, Function, Number, option

Mix = Literal["none", "cutmix", "mixup", "either"]
Architecture = Literal["resnet", "resnet13", "densenet", "student"]
TeacherLoss = Literal["hinton", "dist"]


def flag(default: Any, help: str, *names: str, **more: Any) -> Any:
    """Define a field with a flag, `--two-words` as the field is named or `names`; `more` is for `click.option`."""
    return field(default=default, metadata={"names": names, "help": help, **more})


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
    epochs: int = flag(24, "Passes over the images.", type=POSITIVE)
    seed: int = flag(1, "Of everything random.", type=int)
    batch_size: int = flag(2000, "Images in a step.", type=POSITIVE)
    forward_batch_size: int = flag(
        500, "Images that go through the network at once; batch norm sees no more.", type=POSITIVE
    )
    learning_rate: float = flag(0.24, "Of the convolutions, at first; it falls linearly to 0.", type=float)
    momentum: float = 0.6
    bias_learning_rate: float = flag(0.053, "Of biases, at first.", type=float)
    head_learning_rate: float = flag(0.67, "Of the last layer, at first.", type=float)
    sgd_momentum: float = 0.85
    weight_decay: float = 2e-6
    label_smoothing: float = flag(0.2, "The share of each target that is spread over all classes.", type=SHARE)
    translate_px: int = flag(3, "Pixels, at most.", "--translate", type=int)
    cutout_px: int = flag(6, "The cut square's side, pixels.", "--cutout", type=int)
    zoom: float = flag(0.0, "Fraction, at most.", type=SHARE)
    contrast: float = flag(0.0, "Fraction, at most, of contrast and of brightness.", type=SHARE)
    mix: str = flag(
        "none",
        "How images are mixed with each other; `either`: half of them by each.",
        type=click.Choice(get_args(Mix)),
    )
    mix_probability: float = flag(0.5, "The fraction of images that is mixed.", type=SHARE)
    mixtures: int = flag(
        0,
        "Mixtures of all images to make beforehand, which --teachers need; 0: mix each batch anew.",
        type=COUNT,
    )
    hold_out: int = flag(0, "Images to leave out, and to compare candidates on.", type=COUNT)
    teachers: tuple[str, ...] = flag(
        (), "Models whose answers are learnt besides the labels.", multiple=True, metavar="NAME..."
    )
    teacher_loss: str = flag(
        "hinton",
        "The teachers' probabilities are learnt, or by `dist` their correlations between and within classes.",
        type=click.Choice(get_args(TeacherLoss)),
    )
    width: float = flag(1.0, "Of the student: multiplies its channels.", type=Number())
    teacher_weight: float = flag(0.9, "The teachers' share in the loss; the labels have the rest.", type=SHARE)

    def to_json(self) -> dict[str, Any]:
        """Return the recipe as it is recorded, and comes back from JSON."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}


def recipe_options(command: Function) -> Function:
    """Add an option to a command for each field that has a flag."""
    for each in reversed(fields(Recipe)):
        if options := dict(each.metadata):
            names = options.pop("names") or (f"--{each.name.replace('_', '-')}",)
            command = option(*names, each.name, default=each.default, **options)(command)
    return command
