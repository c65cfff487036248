"""Reads what a model is made of: a file of any framework, or the name of a torchvision model."""

from __future__ import annotations

import argparse
from pathlib import Path

import openvino as ov

from models.errors import ModelError
from models.repository import sha256
from scripts.errors import ScriptError
from scripts.prepare import pretrained

READABLE = (".onnx", ".tflite", ".pdmodel", ".xml", ".pb")


def read(source: str, args: argparse.Namespace) -> pretrained.Pretrained:
    """The network, and what is known about its input.

    Raises:
        ModelError: it can't be read.
        ScriptError: a flag is missing or doesn't fit.
    """
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
    takes_bytes = network.inputs and network.input(0).get_element_type() == ov.Type.u8
    if takes_bytes and args.normalize != "none" and args.mean is None and args.std is None:
        raise ScriptError(f"{source} takes uint8 pixels, so it seems to normalize by itself: pass --normalize none")
    digest = {"sha256": sha256(path)} if path.is_file() else {}
    return pretrained.Pretrained(network, {"file": path.name, **digest})
