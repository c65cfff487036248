"""Tiny OpenVINO models with known answers, as commands write them into a repository."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
import openvino as ov
from openvino import opset13

from ensemble_models.writing import input_metadata, write_version

SIZE = (8, 8)
LABELS = ("bird", "cat", "dog")

Draw = Callable[..., Path]


def call(command: click.Command, *arguments: object) -> None:
    """Calls a command, whose mistakes stay exceptions."""
    with command.make_context(command.name, [str(argument) for argument in arguments]) as context:
        command.invoke(context)


def constant(probabilities: Sequence[float], size: tuple[int, int] = SIZE) -> ov.Model:
    """Answers the same whatever it sees: uint8 [N,8,8,3] to float32 [N,C]."""
    image = opset13.parameter([-1, *size, 3], ov.Type.u8)
    nothing = opset13.multiply(
        opset13.reduce_mean(opset13.convert(image, "f32"), np.array([1, 2, 3]), keep_dims=False), np.float32(0)
    )
    rows = opset13.unsqueeze(nothing, np.array([1]))
    return ov.Model([opset13.add(rows, np.array([probabilities], np.float32))], [image])


def convolutions(seed: int = 0, width: int = 64) -> ov.Model:
    """A float classifier, RGB float32 [1,3,8,8] to logits [1,3], with enough weights to be worth quantizing."""
    random = np.random.default_rng(seed)
    image = opset13.parameter([1, 3, *SIZE], ov.Type.f32)
    node, channels = image, 3
    for _ in range(3):
        filters = random.standard_normal((width, channels, 3, 3)) / np.sqrt(9 * channels)
        node = opset13.relu(opset13.convolution(node, filters.astype(np.float32), [1, 1], [1, 1], [1, 1], [1, 1]))
        channels = width
    pooled = opset13.reduce_mean(node, np.array([2, 3]), keep_dims=True)
    # As PyTorch's flatten and linear come out: what OpenVINO's smart reshape ties to the weights.
    node = opset13.reshape(pooled, np.array([-1, width]), False)
    for columns in (8 * width, 3):
        weights = random.standard_normal((width, columns)) / np.sqrt(width)
        node, width = opset13.matmul(node, weights.astype(np.float32), False, False), columns
    return ov.Model([node], [image])


def add(
    repository: Path,
    name: str,
    network: ov.Model,
    precision: str,
    labels: Sequence[str] | None = LABELS,
    **more: Any,
) -> Path:
    """Write the next version of a model that has the ensemble's signature."""
    size = tuple(edge.get_length() for edge in list(network.input(0).get_partial_shape())[1:3])
    metadata: dict[str, Any] = {"precision": precision, "input": input_metadata(size, 1.0), **more}
    if labels is not None:
        metadata["classes"] = list(labels)
    return write_version(network, repository, name, None, metadata, compress_to_fp16=precision == "FP16")
