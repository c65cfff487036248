"""An inference request of the Open Inference Protocol over HTTP, and its answer: JSON, and binary tensors after it.

The extension for binary tensors: the header tells the bytes of JSON; what follows are the tensors, each of as many
bytes as its parameter `binary_data_size` says. A header of 0 means that the whole body is the one input.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from starlette.responses import Response

from deployments.contract.errors import InvalidParameter
from deployments.ingress.http import bodies
from deployments.ingress.http.routes import plain
from deployments.ingress.open_inference import tensors
from deployments.ingress.open_inference.model import Inferred, Model, Requested
from deployments.ingress.open_inference.regions import place, put, taken
from deployments.ingress.open_inference.tensors import Tensor
from deployments.ingress.settings import IngressSettings
from deployments.ingress.shared_memory import Regions

BINARY = "Inference-Header-Content-Length"


class InputTensor(msgspec.Struct):
    """A tensor of a request: numbers, or encoded images in base64, or nothing where binary data follow the JSON."""

    name: str
    datatype: str
    shape: list[int]
    data: list[Any] = []
    parameters: dict[str, Any] = {}


class OutputRequest(msgspec.Struct):
    """An output to answer; its parameters may be `binary_data` and `classification`."""

    name: str
    parameters: dict[str, Any] = {}


class InferRequest(msgspec.Struct):
    """Input tensors, and what to answer."""

    inputs: list[InputTensor]
    id: str = ""
    parameters: dict[str, Any] = {}
    outputs: list[OutputRequest] = []


class OutputTensor(msgspec.Struct, omit_defaults=True):
    """A tensor of an answer; without data where they follow the JSON."""

    name: str
    datatype: str
    shape: list[int]
    data: list[Any] = []
    parameters: dict[str, Any] = {}


class InferAnswer(msgspec.Struct, omit_defaults=True):
    """What a model says of a request."""

    model_name: str
    model_version: str
    parameters: dict[str, str]
    outputs: list[OutputTensor]
    id: str = ""


class Asked(NamedTuple):
    """A request that was read.

    Attributes:
        tensor: its input.
        requested: the outputs to answer.
        binary: whether each of them is to be answered in binary.
        parameters: the request's.
        identifier: the request's `id`.
    """

    tensor: Tensor
    requested: list[Requested]
    binary: list[bool]
    parameters: dict[str, Any]
    identifier: str


def read(model: Model, body: bytes, header: str | None, settings: IngressSettings, regions: Regions) -> Asked:
    """A request's tensor, and what it asks for.

    Args:
        model: what is asked.
        body: of the request.
        header: the value of `Inference-Header-Content-Length`, None without it.
        settings: the limits.
        regions: where a tensor may be instead.

    Raises:
        InvalidParameter: it is malformed, or not for this model.
    """
    length = _length(header, len(body))
    if length == 0 and header is not None:
        whole = model.requested([], _output)
        return Asked(_whole(model, body), whole, [True] * len(whole), {}, "")
    if header is not None:
        bodies.check_elements(body[:length])
    fields, tail = parsed(body[:length]), memoryview(body)[length:]
    tensor = _tensor(model, fields, tail, settings, regions)
    identifier, parameters = _field(fields, "id", str, ""), _field(fields, "parameters", dict, {})
    requested = model.requested(_list(fields, "outputs"), _output)
    default = parameters.get("binary_data_output", False)
    binary = [each.parameters.get("binary_data", default) is True for each in requested]
    return Asked(tensor, requested, binary, parameters, identifier)


def write(model: Model, asked: Asked, inferred: Inferred, regions: Regions) -> Response:
    """The answer as it was asked for: JSON, or JSON and binary tensors, or some of them in shared memory."""
    outputs, raws = [], []
    told = model.told(inferred.outputs, asked.requested)
    for tensor, requested, is_binary in zip(told, asked.requested, asked.binary, strict=True):
        output = OutputTensor(tensor.name, tensor.datatype, tensor.shape)
        if (where := place(requested.parameters)) is not None:
            output.parameters = put(regions, where, tensors.to_raw(tensor))
        elif is_binary:
            raws.append(tensors.to_raw(tensor))
            output.parameters = {"binary_data_size": len(raws[-1])}
        else:
            output.data = tensors.to_list(tensor)
        outputs.append(output)
    answer = InferAnswer(
        model.metadata.name, model.metadata.versions[0], inferred.parameters, outputs, asked.identifier
    )
    response = plain(msgspec.to_builtins(answer))
    if not raws:
        return response
    head = bytes(response.body)
    return Response(b"".join([head, *raws]), media_type="application/octet-stream", headers={BINARY: str(len(head))})


def _length(header: str | None, size: int) -> int:
    """The bytes of JSON."""
    if header is None:
        return size
    if not (header.isascii() and header.isdigit() and len(header) < 12 and int(header) <= size):
        raise InvalidParameter(f"{BINARY} must be a number of the body's {size} bytes; got {header[:40]!r}")
    return int(header)


def _whole(model: Model, body: bytes) -> Tensor:
    """The body as the one input: an element of BYTES, or a row."""
    [own] = model.metadata.inputs
    if own.datatype == "BYTES":
        return Tensor(own.name, own.datatype, [1], [body])
    return tensors.from_raw(own.name, own.datatype, [1, *own.shape[1:]], body, 0)


def _tensor(
    model: Model, fields: dict[str, Any], tail: memoryview, settings: IngressSettings, regions: Regions
) -> Tensor:
    inputs = _list(fields, "inputs")
    model.check_inputs(inputs, lambda given: (_field(given, "name", str), _field(given, "datatype", str)))
    [given] = inputs
    name, datatype, shape = given["name"], given["datatype"], _field(given, "shape", list)
    parameters, most = _field(given, "parameters", dict, {}), settings.max_parts
    size, where = parameters.get("binary_data_size"), place(parameters)
    if (size or 0) != len(tail):
        raise InvalidParameter(f"{len(tail)} bytes follow the JSON, but binary_data_size of {name!r} says {size}")
    if where is not None:
        return tensors.from_raw(name, datatype, shape, taken(regions, where, settings.max_request_bytes), most)
    if size is not None:
        return tensors.from_raw(name, datatype, shape, tail, most)
    data = _field(given, "data", list)
    if datatype != "BYTES":
        return tensors.from_list(name, datatype, shape, data)
    if len(data) > most:
        return Tensor(name, datatype, shape, data)
    try:
        return Tensor(name, datatype, shape, [base64.b64decode(_element(item), validate=True) for item in data])
    except (binascii.Error, TypeError, ValueError) as err:
        raise InvalidParameter(f"the data of {name!r} must be base64 strings: {err}") from err


def parsed(body: bytes) -> dict[str, Any]:
    """The object that a body is in JSON; raises InvalidParameter if it is none."""
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError) as err:
        raise InvalidParameter(f"the body is not valid JSON: {err}") from err
    if not isinstance(fields, dict):
        raise InvalidParameter("the body must be a JSON object")
    return fields


def _field(container: Any, name: str, kind: type, default: Any = None) -> Any:
    value = container.get(name, default) if isinstance(container, dict) else None
    if not isinstance(value, kind):
        raise InvalidParameter(f"{name!r} must be a {kind.__name__}")
    return value


def _output(output: Any) -> tuple[str, dict[str, Any]]:
    return _field(output, "name", str), _field(output, "parameters", dict, {})


def _list(body: Mapping[str, Any], name: str) -> Sequence[Any]:
    items: Sequence[Any] = _field(body, name, list, [])
    return items


def _element(item: Any) -> Any:
    """An element of the tensor; of shape [-1, 1] each may be in a list of its own."""
    return item[0] if isinstance(item, list) and len(item) == 1 else item
