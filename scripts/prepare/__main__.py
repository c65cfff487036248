"""Brings a model into the repository, its preprocessing baked in, whatever framework it comes from.

    python -m scripts.prepare resnet50 --weights default --name resnet50
    python -m scripts.prepare classifier.onnx --name mine --labels labels.txt --mean 0.5 0.5 0.5 --std 0.5 0.5 0.5
    python -m scripts.prepare saved_model/ --name mine --size 224 224 --layout NHWC --no-normalize

SOURCE is a file or folder that OpenVINO reads (.onnx, .tflite, .pdmodel, IR .xml, TensorFlow SavedModel), or the name
of a torchvision model, which needs the `train` extra (PyTorch and torchvision). `--weights default` downloads the
official weights and compares their SHA-256 with its first 8 digits, which are part of torchvision's file names.
`--weights random` downloads nothing; it is for measuring speed.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import openvino as ov

from deployments.contract.preprocessing import Interpolation, Resize
from models.baking import bake, static_size
from models.errors import ModelError
from models.network import stored_precision
from models.repository import DEFAULT_ROOT, sha256
from models.writing import check_name, describe, input_metadata, write_version
from scripts.errors import ScriptError, positive, told_in_one_line
from scripts.prepare import pretrained, quantize

READABLE = (".onnx", ".tflite", ".pdmodel", ".xml", ".pb")
WHITE = 255


def prepare(source: str, args: argparse.Namespace) -> Path:
    """Write a model as the next version.

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
    model = _read(source, args)
    size = tuple(args.size) if args.size else model.size
    # A member of three channels in the other order has its means in the other order, too.
    order = slice(None, None, -1 if args.channel_order == "BGR" else 1)
    mean, std = args.mean or model.mean[order], args.std or model.std[order]
    if args.no_normalize:
        mean, std = (0.0, 0.0, 0.0), (1 / WHITE,) * 3
    _check_flags(mean, std, args)
    network = bake(
        model.network,
        size=size,
        mean=[value * WHITE for value in mean],
        scale=[round(value * WHITE, 6) for value in std],
        channel_order=args.channel_order,
        layout=args.layout,
    )
    crop_ratio = args.crop_ratio or model.crop_ratio
    labels = _labels(args.labels) if args.labels else model.labels
    classes = network.output(0).get_partial_shape()[1].get_length()
    if labels is not None and len(labels) != classes:
        raise ScriptError(f"the model has {classes} classes, but there are {len(labels)} labels")
    metadata = {
        **({"classes": list(labels)} if labels else {}),
        "input": {**input_metadata(size, crop_ratio), **_resizing(args)},
        "source": {
            "tool": "scripts.prepare",
            **model.origin,
            "mean": list(mean),
            "std": list(std),
            "channel_order": args.channel_order,
            "layout": args.layout,
            "openvino": ov.__version__,
        },
    }
    return write_version(
        network,
        args.repository,
        args.name,
        args.version,
        metadata,
        compress_to_fp16=args.precision == "FP16",
        # Not what was asked for: weights that come in float16 or int8 stay so.
        check=lambda written: {"precision": stored_precision(written)},
    )


def _read(source: str, args: argparse.Namespace) -> pretrained.Pretrained:
    path = Path(source)
    if not path.exists():
        if "/" in source or path.suffix in READABLE:
            raise ModelError(f"there is no {source}")
        if args.weights is None:
            raise ScriptError(
                f"{source!r} is no file; for torchvision's model of that name say --weights default|random"
            )
        return pretrained.get(source, args.weights)
    if args.weights is not None:
        raise ScriptError(f"--weights is for torchvision models; {source} has its own")
    try:
        network = ov.Core().read_model(path) if path.suffix == ".xml" else ov.convert_model(path)
    # convert_model raises its own error type, and plain Exception for a format that it doesn't know.
    except Exception as err:
        if path.suffix == ".json":
            raise ModelError(
                f"OpenVINO can't read {source}; if that is PaddlePaddle's, save it with FLAGS_enable_pir_api=0 in the "
                "environment, which makes a .pdmodel"
            ) from err
        raise ModelError(f"OpenVINO can't read {source}; it reads {', '.join(READABLE)}, SavedModel: {err}") from err
    size = static_size(network, args.layout)
    if size is None and args.size is None:
        raise ScriptError(f"{source} takes images of any size; say which by --size HEIGHT WIDTH")
    takes_bytes = network.inputs and network.input(0).get_element_type() == ov.Type.u8
    if takes_bytes and not args.no_normalize and args.mean is None and args.std is None:
        raise ScriptError(f"{source} takes uint8 pixels, so it seems to normalize by itself: pass --no-normalize")
    digest = {"sha256": sha256(path)} if path.is_file() else {}
    return pretrained.Pretrained(network, {"file": path.name, **digest}, size=size or pretrained.IMAGENET_SIZE)


def _check_flags(mean: Sequence[float], std: Sequence[float], args: argparse.Namespace) -> None:
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
    _per_channel(
        result, "--mean", "of pixels scaled to 0 to 1, in --channel-order (default: the weights', else ImageNet's)"
    )
    _per_channel(result, "--std", "likewise")
    result.add_argument("--no-normalize", action="store_true", help="the model takes pixels from 0 to 255 as they are")
    result.add_argument("--channel-order", choices=("RGB", "BGR"), default="RGB", help="default: RGB")
    result.add_argument("--layout", choices=("NCHW", "NHWC"), default="NCHW", help="default: NCHW")
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
    result.add_argument("--data", type=Path, help="images to calibrate --int8 on, zip or folder of <class>/*.jpg")
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
