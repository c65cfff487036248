"""The command `ensemble export`: writes a model with its classes and preprocessing in the fields of exporters."""

import json
from pathlib import Path

import click
import openvino as ov

from deployments.repository.errors import ModelError
from deployments.repository.network import load
from deployments.repository.repository import Model, find, sha256
from ensemble_models.exporters.facts import WHITE
from ensemble_models.exporters.forms import RESIZE_TYPES
from ensemble_models.options import FILE, POSITIVE, Command, option, repository_option
from ensemble_models.prediction import preprocessing
from scripts.errors import ScriptError

# Model API's filters, by how sharp they are.
MODES = {"cubic": "CUBIC", "bicubic": "CUBIC", "lanczos": "CUBIC", "nearest": "NEAREST"}
# Protobuf's keys: of `metadata_props` in ONNX's `ModelProto`, and of key and value in its entries.
PROPERTY, KEY, VALUE = b"\x72", b"\x0a", b"\x12"


def model_info(model: Model, order: str, mean: list[float], scale: list[float]) -> dict[str, str]:
    """List the fields of `model_info`, Model API's own and this project's; see `forms.model_api`.

    Args:
        model: a version of the repository.
        order: the order of the colours that the written file takes.
        mean: is subtracted from pixels from 0 to 255; empty if the model subtracts it by itself.
        scale: divides the pixels after that, likewise.
    """
    wanted, labels = preprocessing(model), model.labels or ()
    resize = next(name for name, value in RESIZE_TYPES.items() if value == wanted.resize)
    return {
        "model_type": "Classification",
        "color": order,
        "reverse_input_channels": "YES" if order == "RGB" else "NO",
        "resize_type": resize,
        "crop_ratio": repr(wanted.crop_ratio),
        "interpolation": wanted.interpolation,
        "interpolation_mode": MODES.get(wanted.interpolation, "LINEAR"),
        "pad_value": str(wanted.border[0]),
        **({"mean_values": _row(mean), "scale_values": _row(scale)} if mean else {}),
        # In Model API's, spaces are between names.
        **({"labels": " ".join(name.replace(" ", "_") for name in labels)} if labels else {}),
        **({"class_names": json.dumps(labels)} if labels else {}),
    }


def write_onnx(model: Model, given: Path, target: Path) -> None:
    """Copy the ONNX file that a version was prepared from, with `model_info` among its properties.

    Raises:
        ModelError: it is another file, or its weights are in files beside it.
    """
    source = model.source
    if source.get("sha256") != sha256(given) or "mean" not in source:
        raise ModelError(f"version {model.version} of {model.name!r} was not prepared from {given}; leave out --onnx")
    mean, scale = ([WHITE * value for value in source[name]] for name in ("mean", "std"))
    info = model_info(model, source["channel_order"], mean, scale)
    # Messages of protobuf one after the other are one message, whose lists are joined.
    entries = (
        _field(KEY, f"model_info {name}".encode()) + _field(VALUE, value.encode()) for name, value in info.items()
    )
    target.write_bytes(given.read_bytes() + b"".join(_field(PROPERTY, entry) for entry in entries))
    try:
        ov.Core().read_model(target)
    except RuntimeError as err:
        target.unlink()
        raise ModelError(
            f"{given} has weights in other files: export it as one file, or name its folder: {err}"
        ) from err


def _field(key: bytes, content: bytes) -> bytes:
    """Encode a field of bytes: its key, its length in groups of seven bits, its content."""
    length, groups = len(content), bytearray()
    while length > 0x7F:
        groups.append(length & 0x7F | 0x80)
        length >>= 7
    return key + bytes([*groups, length]) + content


def _row(values: list[float]) -> str:
    return " ".join(f"{value:.8g}" for value in values)


@click.command("export", cls=Command)
@click.argument("name")
@click.argument("folder", type=FILE)
@option("--version", type=POSITIVE, help="Version to write; default: the highest.")
@option("--onnx", type=FILE, metavar="FILE", help="The ONNX file that it was prepared from; a copy gets the fields.")
@repository_option
def main(name: str, folder: Path, version: int | None, onnx: Path | None, repository: Path) -> None:
    """Write a model of the repository, with its classes and preprocessing in fields that other programs read.

    ensemble export mine out/                        # out/mine.xml and out/mine.bin
    ensemble export mine out/ --onnx mine.onnx       # out/mine.onnx: a copy with the fields

    The fields are `model_info` of OpenVINO's Model API, in an IR below `rt_info`, and in an ONNX file among its
    properties. Model API reads no crop ratio and no antialiasing: `crop_ratio`, `interpolation`, `color` and
    `class_names` stand beside its fields. `ensemble prepare` reads all of them.
    """
    model = find(repository, name, version)
    target = folder / f"{name}{'.xml' if onnx is None else '.onnx'}"
    if target.exists():
        raise ScriptError(f"{target} is there already; remove it, or name another folder")
    folder.mkdir(parents=True, exist_ok=True)
    if onnx is None:
        network = load(model)
        # Pixels are uint8, blue first, and nothing is subtracted from them.
        for field, value in model_info(model, "BGR", [], []).items():
            network.set_rt_info(value, ["model_info", field])
        ov.save_model(network, target, compress_to_fp16=False)
    else:
        write_onnx(model, onnx, target)
    print(f"wrote {target}, version {model.version} of {name}, with {len(model.labels or ())} class names")


if __name__ == "__main__":
    main()
