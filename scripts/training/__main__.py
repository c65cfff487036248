"""Trains a member of the ensemble: a CIFAR-size network, on a GPU if there is one, else on the CPU.

    ensemble train resnet --data train.zip --hold-out 5000 --checkpoint checkpoints/resnet.pt --output models
    ensemble train student --teachers resnet densenet --data train.zip --checkpoint checkpoints/student.pt

Needs the `train` extra (PyTorch). Stops and resumes at any epoch: the same command goes on from the checkpoint. With
`--output`, the finished model is written into that model repository as version 1, in float16.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import sys
from pathlib import Path
from typing import get_args

from models.repository import DEFAULT_ROOT
from models.writing import check_free, check_name, check_replaceable, describe
from scripts.errors import ScriptError, at_least_zero, fraction, positive, told_in_one_line
from scripts.training.recipe import Architecture, Augmentation, Mix, Recipe, to_json

# glibc's numbers for `mallopt`.
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
# Pixels; of a smaller image three poolings leave nothing.
SMALLEST = 9


def keep_freed_memory() -> None:
    """Let glibc use large blocks again, not return them to the kernel; on a CPU that took a fifth of the time."""
    if sys.platform == "linux" and hasattr(library := ctypes.CDLL(None), "mallopt"):
        library.mallopt(M_MMAP_MAX, 0)
        library.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    result = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument("architecture", choices=get_args(Architecture))
    result.add_argument("--data", type=Path, required=True, help="zip or folder of <class>/*.jpg")
    result.add_argument(
        "--hold-out", type=at_least_zero, default=Recipe.hold_out, help="images to leave out and judge by"
    )
    result.add_argument("--validation", type=Path, help="zip or folder to judge by instead, after each epoch")
    result.add_argument("--checkpoint", type=Path, required=True, help="written every epoch, resumed from")
    result.add_argument("--initial", type=Path, metavar="CHECKPOINT", help="a finished run's weights to begin with")
    result.add_argument("--size", type=int, default=32, help="height and width to resize images to, pixels")
    result.add_argument("--augmentation", choices=get_args(Augmentation), default="shift")
    result.add_argument("--epochs", type=positive, default=24)
    result.add_argument("--seed", type=int, default=1)
    result.add_argument("--output", type=Path, metavar="REPOSITORY", help="model repository to export to at the end")
    result.add_argument("--name", help="the model's name there (default: the architecture's)")
    result.add_argument("--mirror", action="store_true", help="export a model that also looks at the mirror image")
    result.add_argument("--replace", action="store_true", help="let an existing version 1 give way")
    result.add_argument(
        "--learning-rate", type=float, default=Recipe.learning_rate, help="of the convolutions, at first"
    )
    result.add_argument("--batch-size", type=positive, default=Recipe.batch_size, help="images in a step")
    result.add_argument(
        "--head-learning-rate", type=float, default=Recipe.head_learning_rate, help="of the last layer, at first"
    )
    result.add_argument(
        "--bias-learning-rate", type=float, default=Recipe.bias_learning_rate, help="of the biases, at first"
    )
    result.add_argument("--translate", type=int, default=Recipe.translate_px, help="pixels, at most")
    result.add_argument("--cutout", type=int, default=Recipe.cutout_px, help="pixels")
    result.add_argument("--zoom", type=fraction, default=Recipe.zoom, help="fraction, at most")
    result.add_argument("--contrast", type=fraction, default=Recipe.contrast, help="fraction, at most")
    result.add_argument("--mix", choices=get_args(Mix), default=Recipe.mix, help="images with each other")
    result.add_argument("--mix-probability", type=fraction, default=Recipe.mix_probability, help="of an image")
    result.add_argument(
        "--mixtures",
        type=at_least_zero,
        default=Recipe.mixtures,
        help="mix all images so many times beforehand, and ask teachers about each once (default: mix each batch)",
    )
    result.add_argument("--label-smoothing", type=fraction, default=Recipe.label_smoothing)
    result.add_argument(
        "--teachers", nargs="+", default=[], metavar="NAME", help="models whose answers are learnt, too"
    )
    result.add_argument(
        "--repository", type=Path, default=DEFAULT_ROOT, help="the teachers' (default: the models in the box)"
    )
    result.add_argument(
        "--lessons", type=Path, metavar="FILE", help="keeps the teachers' answers, for later epochs and other runs"
    )
    result.add_argument("--temperature", type=float, default=Recipe.temperature, help="softens the teachers' answers")
    result.add_argument(
        "--teacher-weight", type=fraction, default=Recipe.teacher_weight, help="the teachers' share in the loss"
    )
    return result


def from_arguments(args: argparse.Namespace) -> Recipe:
    """The recipe that the flags describe."""
    return Recipe(
        args.architecture,
        args.augmentation,
        args.epochs,
        args.seed,
        batch_size=args.batch_size,
        head_learning_rate=args.head_learning_rate,
        bias_learning_rate=args.bias_learning_rate,
        learning_rate=args.learning_rate,
        translate_px=args.translate,
        cutout_px=args.cutout,
        zoom=args.zoom,
        contrast=args.contrast,
        mix=args.mix,
        mix_probability=args.mix_probability,
        mixtures=args.mixtures,
        label_smoothing=args.label_smoothing,
        hold_out=args.hold_out,
        teachers=tuple(args.teachers),
        temperature=args.temperature,
        teacher_weight=args.teacher_weight,
    )


def run(recipe: Recipe, args: argparse.Namespace) -> None:
    """Train, then export if `args.output` is set.

    Raises:
        ModelError: version 1 exists already, or is to be replaced but not what was quantized from it, or the name
            can't be a model's; told before training, not after.
        ScriptError: see `train`.
    """
    name = args.name or recipe.architecture
    if args.output is not None:
        check_name(name)
        if args.replace:
            check_replaceable(args.output, name, 1)
        else:
            check_free(args.output, name, 1, "name another by --name, or pass --replace")
    try:
        from scripts.training.export import export
        from scripts.training.loop import judging_images, train
    except ModuleNotFoundError as err:
        raise ScriptError("training needs PyTorch: make train, or pip install -e '.[train]'") from err
    print(json.dumps(to_json(recipe)))
    train(recipe, args.data, args.validation, args.size, args.checkpoint, args.initial, args.repository, args.lessons)
    if args.output is not None:
        folder = export(
            args.checkpoint,
            args.output,
            name,
            data=args.data,
            validation=judging_images(recipe, args.data, args.validation),
            replace=args.replace,
            mirror=args.mirror,
        )
        print(f"wrote {describe(folder)}")


def main() -> None:
    """Parse the command line and train."""
    command = parser()
    args = command.parse_args()
    if args.size < SMALLEST:
        command.error(f"--size must be {SMALLEST} or more")
    if args.temperature <= 0:
        command.error("--temperature must be more than 0")
    if args.mixtures and args.mix == "none":
        command.error("--mixtures needs --mix: cutmix, mixup, or either")
    keep_freed_memory()
    with told_in_one_line():
        run(from_arguments(args), args)


if __name__ == "__main__":
    main()
