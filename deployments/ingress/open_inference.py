"""The Open Inference Protocol's view of the ensemble: one model, one input, three outputs; the same for JSON and gRPC.

Source: https://github.com/kserve/open-inference-protocol
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from deployments.contract.answer import Answer
from deployments.contract.errors import EnsembleError, InvalidParameter, NotFound

MODEL = "ensemble"
VERSION = "1"
PLATFORM = "openvino_ensemble"
INPUT = "image"
OUTPUTS = ("label", "index", "probabilities")
# Options whose answer no tensor has.
TOLD_IN_WORDS = frozenset({"top_k", "members", "timings"})
DATATYPES = {"label": "BYTES", "index": "INT64", "probabilities": "FP32"}


class TensorMetadata(msgspec.Struct, frozen=True):
    """A tensor that a model takes or gives; -1 stands for any extent."""

    name: str
    datatype: str
    shape: list[int]


class ModelMetadata(msgspec.Struct, frozen=True):
    """A model's inputs and outputs."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]


class ServerMetadata(msgspec.Struct, frozen=True):
    """The server's name, version and the extensions of the protocol that it has."""

    name: str
    version: str
    extensions: list[str]


@dataclass(frozen=True, slots=True)
class Tensor:
    """An output tensor: `data` is a list of str for BYTES, else an array."""

    name: str
    datatype: str
    shape: list[int]
    data: Any


SERVER = ServerMetadata(MODEL, VERSION, [])


def metadata(class_count: int) -> ModelMetadata:
    """The ensemble's inputs and outputs."""
    shapes = {"label": [-1], "index": [-1], "probabilities": [-1, class_count]}
    return ModelMetadata(
        MODEL,
        [VERSION],
        PLATFORM,
        [TensorMetadata(INPUT, "BYTES", [-1])],
        [TensorMetadata(name, DATATYPES[name], shapes[name]) for name in OUTPUTS],
    )


def check_model(name: str, version: str) -> None:
    """Raise NotFound unless this is the ensemble, without a version or with the only one."""
    if name != MODEL:
        raise NotFound(f"there is no model {name!r}; the model is {MODEL!r}")
    if version not in {"", VERSION}:
        raise NotFound(f"model {MODEL!r} has no version {version!r}; its version is {VERSION!r}")


def check_inputs(inputs: Sequence[tuple[str, str]]) -> None:
    """Raise InvalidParameter unless the inputs, each (name, datatype), are one, `image` of BYTES."""
    if len(inputs) != 1 or inputs[0][0] != INPUT:
        raise InvalidParameter(f"the request needs exactly one input, {INPUT!r}; it has {[i[0] for i in inputs]}")
    if inputs[0][1] != "BYTES":
        raise InvalidParameter(
            f"the input {INPUT!r} has datatype BYTES, an encoded image an element; got {inputs[0][1]!r}"
        )


def check_shape(shape: Sequence[Any], count: int) -> None:
    """Raise InvalidParameter unless the input's shape, [-1] or [-1, 1], matches the number of its elements."""
    fits = len(shape) in {1, 2} and shape[0] == count and (len(shape) == 1 or shape[1] == 1)
    if not fits or count == 0:
        raise InvalidParameter(f"the input {INPUT!r} has shape {list(shape)} but {count} elements; send [{count}]")


def check_outputs(names: Sequence[str]) -> tuple[str, ...]:
    """The outputs to answer: those asked for, or all; raises InvalidParameter for an unknown one."""
    if unknown := [name for name in names if name not in OUTPUTS]:
        raise InvalidParameter(f"there is no output {unknown[0]!r}; the outputs are {list(OUTPUTS)}")
    return tuple(names) or OUTPUTS


def succeeded(outcomes: Sequence[Answer | EnsembleError]) -> list[Answer]:
    """The answers to a request's images.

    Raises:
        EnsembleError: the first image's that failed, since the protocol has no error for a single element.
    """
    answers: list[Answer] = []
    for position, outcome in enumerate(outcomes):
        if isinstance(outcome, EnsembleError):
            where = f"image {position}: " if len(outcomes) > 1 else ""
            raise type(outcome)(f"{where}{outcome.message}")
        answers.append(outcome)
    return answers


def tensors(answers: Sequence[Answer], names: Sequence[str]) -> list[Tensor]:
    """The named outputs for a request's answers."""
    return [_tensor(name, answers) for name in names]


def _tensor(name: str, answers: Sequence[Answer]) -> Tensor:
    if name == "label":
        return Tensor(name, DATATYPES[name], [len(answers)], [answer.classification.label for answer in answers])
    if name == "index":
        data = np.array([answer.classification.index for answer in answers], np.int64)
    else:
        data = np.stack([answer.probabilities for answer in answers])
    return Tensor(name, DATATYPES[name], list(data.shape), data)


def response_parameters(answers: Sequence[Answer], asked: Mapping[str, Any]) -> dict[str, str]:
    """What the protocol has no tensor for.

    `trace_id`; and as JSON, an element for each image, `missing`, where members did not answer, `asked`, of a cascade,
    `cache`, of a cache, and `classifications`, the answers, if `top_k`, `members` or `timings` was asked.
    """
    parameters = {"trace_id": answers[0].classification.trace_id}
    missing = [answer.classification.missing or {} for answer in answers]
    if any(missing):
        parameters["missing"] = msgspec.json.encode(missing).decode()
    if answers[0].classification.asked is not None:
        parameters["asked"] = msgspec.json.encode([answer.classification.asked for answer in answers]).decode()
    if answers[0].classification.cache is not None:
        parameters["cache"] = msgspec.json.encode([answer.classification.cache for answer in answers]).decode()
    if not asked.keys().isdisjoint(TOLD_IN_WORDS):
        parameters["classifications"] = msgspec.json.encode([answer.classification for answer in answers]).decode()
    return parameters
