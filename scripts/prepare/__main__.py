"""Brings a model into the repository, its preprocessing baked in, whatever framework it comes from.

    ensemble prepare classifier.onnx --name mine --data photographs/
    ensemble prepare classifier.onnx --name mine --labels labels.txt --channel-order RGB --normalize imagenet
    ensemble prepare resnet50 --weights default --name resnet50

SOURCE is a file or folder that OpenVINO reads (.onnx, .tflite, .pdmodel, IR .xml, TensorFlow SavedModel), or the name
of a torchvision model, which needs the `train` extra (PyTorch and torchvision). `--weights default` downloads the
official weights and compares their SHA-256 with its first 8 digits, which are part of torchvision's file names.
`--weights random` downloads nothing; it is for measuring speed.

No file says how its model wants colours ordered and pixels normalized. Labelled images, `--data`, show it: the usual
ways are tried, and the best is taken if it is clearly better than the others. Without images the flags must say it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np
import openvino as ov

from deployments.contract.member import told
from deployments.contract.preprocessing import Interpolation, Preprocessing, Resize
from models.baking import Color, bake, check_ends, ends_in_softmax, static_size
from models.layout import LAYOUTS, layout_of
from models.network import class_count, stored_precision
from models.repository import DEFAULT_ROOT
from models.writing import check_name, describe, input_metadata, write_version
from scripts.dataset import Dataset
from scripts.errors import ScriptError, positive, told_in_one_line
from scripts.evaluate.accuracy import decode_all, indices, sample
from scripts.prepare import pretrained, quantize
from scripts.prepare.normalization import ORDERS, USUAL, WHITE, Normalization, choose, usual
from scripts.prepare.source import read

# Labelled images that the usual normalizations are tried on.
MOST_TRIED = 500


def prepare(source: str, args: argparse.Namespace) -> Path:
    """Write a model as the next version, and print what was decided and why.

    Args:
        source: a path, or the name of a torchvision model.
        args: what `parser` makes of the command line.

    Returns:
        The version's folder.

    Raises:
        ModelError: the source can't be read, or can't become a member.
        ScriptError: a flag is missing or doesn't fit the model.
    """
    check_name(args.name)
    _check_flags(args)
    model = read(source, args)
    check_ends(model.network)
    shape = model.network.input(0).get_partial_shape()
    layout = layout_of(shape, args.layout or model.layout)
    size = tuple(args.size) if args.size else model.size or static_size(model.network, layout)
    if size is None:
        raise ScriptError(f"{source} takes images of any size; say which by --size HEIGHT WIDTH")
    crop_ratio = args.crop_ratio or model.crop_ratio
    wanted = {**input_metadata(size, crop_ratio), **_resizing(args)}

    def baked(normalization: Normalization) -> ov.Model:
        return bake(
            model.network.clone(),
            size=size,
            mean=[value * WHITE for value in normalization.mean],
            scale=[round(value * WHITE, 6) for value in normalization.std],
            channel_order=normalization.order,
            layout=layout,
        )

    classes = class_count(baked(Normalization.usual("RGB", "none")))
    images = Dataset.open(args.data) if args.data else None
    labels, named_by = _named(model, args, images, classes)
    normalization, because = _normalization(model, args, images, labels, Preprocessing(size, **told(wanted)), baked)
    metadata = {
        **({"classes": list(labels)} if labels else {}),
        "input": wanted,
        "source": {
            "tool": "scripts.prepare",
            **model.origin,
            "mean": list(normalization.mean),
            "std": list(normalization.std),
            "channel_order": normalization.order,
            "layout": layout,
            "openvino": ov.__version__,
        },
    }
    folder = write_version(
        baked(normalization),
        args.repository,
        args.name,
        args.version,
        metadata,
        compress_to_fp16=args.precision == "FP16",
        # Not what was asked for: weights that come in float16 or int8 stay so.
        check=lambda written: {"precision": stored_precision(written)},
    )
    print(f"size: {size[0]} x {size[1]} pixels, {'by --size' if args.size else 'as the model fixes it'}")
    print(f"layout: {layout}, {'by --layout' if args.layout else f'by its input {shape}'}")
    print(f"channels and normalization: {normalization.flags}, {because}")
    print(f"classes: {classes}, {named_by}")
    print(f"softmax: {'the model ends in one' if ends_in_softmax(model.network) else 'added to its scores'}")
    return folder


def _named(
    model: pretrained.Pretrained, args: argparse.Namespace, images: Dataset | None, classes: int
) -> tuple[Sequence[str] | None, str]:
    """The classes' names, in order of index, and where they are from in words."""
    labels, where = model.labels, "the weights"
    if args.labels:
        labels, where = _labels(args.labels), str(args.labels)
    elif labels is None and images is not None and len(images.classes) == classes:
        labels, where = images.classes, f"the folders of {images.path}, in alphabetical order"
    if labels is None:
        return None, "without names: --labels gives them; else those of the members that it is served with are taken"
    if len(labels) != classes:
        raise ScriptError(f"the model has {classes} classes, but there are {len(labels)} labels")
    return labels, f"{', '.join(labels[:3])}{', ...' if classes > 3 else ''}, named by {where}"


def _normalization(
    model: pretrained.Pretrained,
    args: argparse.Namespace,
    images: Dataset | None,
    labels: Sequence[str] | None,
    wanted: Preprocessing,
    baked: Callable[[Normalization], ov.Model],
) -> tuple[Normalization, str]:
    """What the model wants its pixels to be, and why that is assumed."""
    given = _given(model, args)
    because = "as the weights were trained" if given == model.normalization else "by the flags"
    if images is None or (labels is None and given is not None):
        if given is None:
            raise ScriptError(
                "no file says how its model wants pixels: name labelled images (<class>/*.jpg) by --data, which show "
                "it, or say it by --channel-order RGB|BGR and --normalize imagenet|unit|symmetric|none"
            )
        return given, f"{because}; not measured, since there are no labelled images"
    if labels is None:
        raise ScriptError(
            f"{images.path} has {len(images.classes)} classes, and the model others; say them by --labels"
        )
    try:
        truth = indices(images, labels, args.name)
    except ScriptError as err:
        if given is None:
            raise
        return given, f"{because}; not measured: {err}"
    some = sample(images, MOST_TRIED)
    rows = np.isin(images.names, some.names)
    pixels = decode_all(some.names, [encoded for encoded, _ in some.read()], wanted)
    allowed = usual(args.channel_order, args.normalize) if given is None else [given]
    chosen = choose(allowed, baked, pixels, truth[rows])
    return chosen, f"{because if given else 'the best'} on {len(some)} images of {images.path}"


def _given(model: pretrained.Pretrained, args: argparse.Namespace) -> Normalization | None:
    """What flags and weights say of the normalization; None if a part of it is not said."""
    own = model.normalization
    order: Color | None = args.channel_order or (own.order if own is not None else None)
    if order is None:
        return None
    if args.normalize:
        return Normalization.usual(order, args.normalize)
    if own is not None:
        step = 1 if own.order == order else -1
        own = Normalization(order, own.mean[::step], own.std[::step], own.name)
    if not args.mean and not args.std:
        return own
    mean, std = args.mean or (own and own.mean), args.std or (own and own.std)
    if not mean or not std:
        raise ScriptError("--mean and --std belong together; pass both")
    return Normalization(order, tuple(mean), tuple(std))


def _check_flags(args: argparse.Namespace) -> None:
    mean, std = args.mean or (), args.std or ()
    if not all(-1 <= value <= 1 for value in mean) or not all(0 < value <= 1 for value in std):
        raise ScriptError(
            "--mean and --std are those of pixels scaled to 0 to 1, as ImageNet's 0.485 0.456 0.406; "
            "divide values for 0 to 255 by 255"
        )
    if args.crop_ratio is not None and not 0 < args.crop_ratio <= 1:
        raise ScriptError(f"--crop-ratio {args.crop_ratio}: more than 0 and at most 1")
    if args.resize in {"stretch", "letterbox"} and args.crop_ratio is not None:
        raise ScriptError(f"--crop-ratio is for --resize crop; --resize {args.resize} cuts nothing away")
    if args.border is not None and (
        args.resize != "letterbox" or not all(0 <= value <= WHITE for value in args.border)
    ):
        raise ScriptError("--border is for --resize letterbox: blue, green and red, each from 0 to 255")
    if args.size and min(args.size) < 1:
        raise ScriptError(f"--size {args.size}: height and width in pixels")
    if args.int8 and args.data is None:
        raise ScriptError("--int8 needs images to calibrate on: name them by --data")


def _resizing(args: argparse.Namespace) -> dict[str, Any]:
    """What the transformer shall do other than by default, for the metadata."""
    given = {"resize": args.resize, "interpolation": args.interpolation, "border": args.border}
    return {name: value for name, value in given.items() if value is not None}


def _labels(file: Path) -> tuple[str, ...]:
    try:
        return tuple(file.read_text(encoding="utf-8").splitlines())
    except (OSError, UnicodeDecodeError) as err:
        raise ScriptError(f"can't read the labels {file}: {err}") from err


def parser() -> argparse.ArgumentParser:
    """The command line."""
    result = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument("source", help="file, folder or torchvision name")
    result.add_argument("--name", required=True, help="the model's name in the repository")
    result.add_argument("--weights", choices=("default", "random"), help="of a torchvision model")
    result.add_argument("--labels", type=Path, metavar="FILE", help="class names, one a line, in order of index")
    result.add_argument("--size", type=int, nargs=2, metavar=("HEIGHT", "WIDTH"), help="default: the model's own")
    _per_channel(result, "--mean", "of pixels scaled to 0 to 1, in --channel-order, where --normalize names none")
    _per_channel(result, "--std", "likewise")
    result.add_argument(
        "--normalize", choices=tuple(USUAL), help="mean and std by name; none: the model takes pixels from 0 to 255"
    )
    result.add_argument("--no-normalize", action="store_const", const="none", dest="normalize", help="--normalize none")
    result.add_argument("--channel-order", choices=ORDERS, help="default: what --data show")
    result.add_argument("--layout", choices=LAYOUTS, help="default: what the model's input says")
    result.add_argument("--crop-ratio", type=float, help="share that the centre crop keeps (default: 0.875)")
    result.add_argument("--resize", choices=get_args(Resize), help="how an image gets the size (default: crop)")
    result.add_argument(
        "--interpolation", choices=get_args(Interpolation), help="where an image shrinks (default: area)"
    )
    result.add_argument(
        "--border",
        type=int,
        nargs=3,
        metavar=("B", "G", "R"),
        help="colour beside a letterbox (default: black)",
    )
    result.add_argument(
        "--precision", choices=("FP16", "FP32"), default="FP16", help="of float32 weights (default: FP16)"
    )
    result.add_argument("--repository", type=Path, default=DEFAULT_ROOT, help="default: the models in the box")
    result.add_argument("--version", type=positive, help="default: the next free one")
    result.add_argument("--int8", action="store_true", help="quantize it as well, into the next version")
    result.add_argument(
        "--data", type=Path, help="zip or folder of <class>/*.jpg, which show the normalization, and calibrate --int8"
    )
    quantize.add_arguments(result)
    return result


def _per_channel(result: argparse.ArgumentParser, flag: str, text: str) -> None:
    result.add_argument(flag, type=float, nargs=3, metavar=("C0", "C1", "C2"), help=text)


def run(args: argparse.Namespace) -> list[Path]:
    """Prepare and, with `--int8`, quantize; returns the folders that were written."""
    folders = [prepare(args.source, args)]
    print(f"wrote {describe(folders[0])}")
    if args.int8:
        version = int(folders[0].name)
        folders.append(quantize.quantize(args.repository, args.name, version, quantize.from_arguments(args)))
        print(f"wrote {describe(folders[1])}")
    return folders


def main() -> None:
    """Parse the command line and prepare."""
    args = parser().parse_args()
    with told_in_one_line():
        run(args)


if __name__ == "__main__":
    main()
