"""Trains a member of the ensemble: `ensemble train`."""

from __future__ import annotations

import ctypes
import json
import sys
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import click

from deployments.repository.errors import ModelError
from deployments.repository.repository import DEFAULT_ROOT, find, versions
from ensemble_models.options import FILE, Command, option
from ensemble_models.writing import check_free, check_name, describe
from lab.training.recipe import Architecture, Recipe, recipe_options
from scripts.errors import ScriptError

# glibc's numbers for `mallopt`.
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
# Pixels; of a smaller image three poolings leave nothing.
SMALLEST = 9


def keep_freed_memory() -> None:
    """Let glibc use large blocks again instead of returning them to the kernel, which took a fifth of the time."""
    if sys.platform == "linux" and hasattr(library := ctypes.CDLL(None), "mallopt"):
        library.mallopt(M_MMAP_MAX, 0)
        library.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def check_replaceable(repository: Path, name: str, version: int) -> None:
    """Raise ModelError if another version was quantized from this one: that would keep the old weights."""
    for other in versions(repository, name):
        source = find(repository, name, other).source
        if source.get("tool") == "scripts.quantize" and source.get("version") == version:
            raise ModelError(
                f"version {other} of {name!r} was quantized from version {version} and would stay as it is; delete "
                f"{repository / name / str(other)}, and quantize again after replacing"
            )


def run(recipe: Recipe, args: SimpleNamespace) -> None:
    """Train, then export if `args.output` is set.

    Raises:
        ModelError: version 1 exists already; or `--replace` would leave a version that was quantized from it; or the
            name can't be a model's. It is raised before training, not after.
        ScriptError: see `Run`.
    """
    name = args.name or recipe.architecture
    if args.output is not None:
        check_name(name)
        if args.replace:
            check_replaceable(args.output, name, 1)
        else:
            check_free(args.output, name, 1, "name another by --name, or pass --replace")
    try:
        from lab.training.data import TrainingData, judging_images
        from lab.training.export import export
        from lab.training.loop import Run
    except ModuleNotFoundError as err:
        raise ScriptError("training needs PyTorch: make train, or pip install torch torchvision") from err
    print(json.dumps(recipe.to_json()))
    judged = judging_images(recipe, args.data, args.validation)
    data = TrainingData(recipe, args.data, judged, args.size, args.repository)
    Run(recipe, data, args.checkpoint, args.initial).finish()
    if args.output is not None:
        folder = export(
            args.checkpoint,
            args.output,
            name,
            data=args.data,
            validation=judged,
            replace=args.replace,
            mirror=args.mirror,
        )
        print(f"wrote {describe(folder)}")


@click.command("train", cls=Command)
@click.argument("architecture", type=click.Choice(get_args(Architecture)))
@recipe_options
@option("--data", type=FILE, required=True, help="Zip file or folder of <class>/*.jpg.")
@option("--validation", type=FILE, help="The same, to measure on after each epoch; default: the held-out images.")
@option("--checkpoint", type=FILE, required=True, help="Written every epoch, resumed from.")
@option("--initial", type=FILE, metavar="CHECKPOINT", help="A finished run's weights to begin with.")
@option("--size", type=click.IntRange(SMALLEST), default=32, help="Height and width to resize images to, pixels.")
@option("--output", type=FILE, metavar="REPOSITORY", help="Model repository to export to at the end.")
@option("--name", help="The model's name there; default: the architecture's.")
@option("--mirror", is_flag=True, help="Export a model that also looks at the mirror image.")
@option("--replace", is_flag=True, help="Replace an existing version 1.")
@option("--repository", type=FILE, default=DEFAULT_ROOT, help="The teachers'.")
def main(**given: Any) -> None:
    """Train a member of the ensemble: a CIFAR-size network, on a GPU if there is one, else on the CPU.

    ensemble train resnet --data train.zip --hold-out 5000 --checkpoint checkpoints/resnet.pt --output models
    ensemble train student --teachers resnet densenet --data train.zip --checkpoint checkpoints/student.pt

    Needs the `train` extra (PyTorch). Stops and resumes at any epoch: the same command continues from the checkpoint.
    With `--output`, the finished model is written into that model repository as version 1, in float16.
    """
    args = SimpleNamespace(**given)
    if args.width != 1 and args.architecture != "student":
        raise click.UsageError("--width is of the student; the other architectures have one")
    if args.mixtures and args.mix == "none":
        raise click.UsageError("--mixtures needs --mix: cutmix, mixup, or either")
    if args.teachers and args.mix != "none" and not args.mixtures:
        raise click.UsageError("--teachers are asked once about each mixed image; give --mixtures, as 6")
    keep_freed_memory()
    run(Recipe(**{each.name: given[each.name] for each in fields(Recipe) if each.name in given}), args)


if __name__ == "__main__":
    main()
