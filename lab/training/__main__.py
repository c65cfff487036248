"""Trains a member of the ensemble: a CIFAR-size network, on a GPU if there is one, else on the CPU.

    ensemble train resnet --data train.zip --hold-out 5000 --checkpoint checkpoints/resnet.pt --output models
    ensemble train student --teachers resnet densenet --data train.zip --checkpoint checkpoints/student.pt

Needs the `train` extra (PyTorch). Stops and resumes at any epoch: the same command continues from the checkpoint. With
`--output`, the finished model is written into that model repository as version 1, in float16.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import sys
from pathlib import Path
from typing import get_args

from deployments.repository.repository import DEFAULT_ROOT
from ensemble_models.writing import check_free, check_name, check_replaceable, describe
from lab.flags import add_flags, from_flags
from lab.training.recipe import Architecture, Recipe
from scripts.errors import ScriptError, errors_in_one_line
from scripts.flags import described

# glibc's numbers for `mallopt`.
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
# Pixels; of a smaller image three poolings leave nothing.
SMALLEST = 9


def keep_freed_memory() -> None:
    """Let glibc use large blocks again instead of returning them to the kernel, which took a fifth of the time."""
    if sys.platform == "linux" and hasattr(library := ctypes.CDLL(None), "mallopt"):
        library.mallopt(M_MMAP_MAX, 0)
        library.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def parser() -> argparse.ArgumentParser:
    """Make the parser of the command line."""
    result = described(__doc__)
    add = result.add_argument
    add("architecture", choices=get_args(Architecture))
    add_flags(result, Recipe)
    add("--data", type=Path, required=True, help="zip file or folder of <class>/*.jpg")
    add(
        "--validation",
        type=Path,
        help="zip file or folder to measure on after each epoch (default: the held-out images)",
    )
    add("--checkpoint", type=Path, required=True, help="written every epoch, resumed from")
    add("--initial", type=Path, metavar="CHECKPOINT", help="a finished run's weights to begin with")
    add("--size", type=int, default=32, help="height and width to resize images to, pixels")
    add("--output", type=Path, metavar="REPOSITORY", help="model repository to export to at the end")
    add("--name", help="the model's name there (default: the architecture's)")
    add("--mirror", action="store_true", help="export a model that also looks at the mirror image")
    add("--replace", action="store_true", help="replace an existing version 1")
    add("--repository", type=Path, default=DEFAULT_ROOT, help="the teachers' (default: the bundled models)")
    # The second is its older name.
    add("--teacher-outputs", "--lessons", type=Path, metavar="FILE", help="keeps the answers about --mixtures")
    return result


def run(recipe: Recipe, args: argparse.Namespace) -> None:
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
    data = TrainingData(recipe, args.data, judged, args.size, args.repository, args.teacher_outputs)
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


def main() -> None:
    """Parse the command line and train."""
    command = parser()
    args = command.parse_args()
    if args.size < SMALLEST:
        command.error(f"--size must be {SMALLEST} or more")
    if args.temperature <= 0:
        command.error("--temperature must be more than 0")
    if args.width <= 0:
        command.error("--width must be more than 0")
    if args.width != 1 and args.architecture != "student":
        command.error("--width is of the student; the other architectures have one")
    if args.mixtures and args.mix == "none":
        command.error("--mixtures needs --mix: cutmix, mixup, or either")
    if args.teacher_outputs and not (args.mixtures and args.teachers):
        command.error("--teacher-outputs keeps what --teachers answer about --mixtures; pass both")
    keep_freed_memory()
    with errors_in_one_line():
        run(from_flags(Recipe, args), args)


if __name__ == "__main__":
    main()
