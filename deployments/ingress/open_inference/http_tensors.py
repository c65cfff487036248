"""An inference request of the Open Inference Protocol over HTTP, and its answer: JSON, and binary tensors after it.

The extension for binary tensors: a header has the length of the JSON; the tensors follow, each of as many bytes as its
parameter `binary_data_size`. A header of 0 means that the whole body is the one input.
"""

import sys
from typing import Any, NamedTuple

import msgspec
from starlette.responses import Response

from deployments.contract.errors import InvalidParameter
from deployments.ingress import options
from deployments.ingress.http import base64_images, bodies
from deployments.ingress.open_inference import tensors
from deployments.ingress.open_inference.model import Inferred, Model, Requested
from deployments.ingress.open_inference.tensors import Tensor
from deployments.ingress.protocol import TensorStore
from deployments.ingress.routes import plain
from deployments.ingress.settings import IngressSettings

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


class OutputTensor(InputTensor, omit_defaults=True):
    """A tensor of an answer; without data where they follow the JSON."""


class InferAnswer(msgspec.Struct, omit_defaults=True):
    """What a model says of a request."""

    model_name: str
    model_version: str
    parameters: dict[str, str]
    outputs: list[OutputTensor]
    id: str = ""


class Asked(NamedTuple):
    """A request that was read: its input, and its JSON, which may be empty."""

    tensor: Tensor
    requested: list[Requested]
    request: InferRequest

    def is_binary(self, output: Requested) -> bool:
        """Tell whether the request asks for an output in binary."""
        default = self.request.parameters.get("binary_data_output", False)
        return bool(output.parameters.get("binary_data", default))


def read(model: Model, body: bytes, length: int, settings: IngressSettings, store: TensorStore) -> Asked:
    """Read a request's tensor and the outputs it asks for; `length` is its number of bytes of JSON.

    Raises:
        InvalidParameter: it is malformed, or not for this model.
    """
    if len(body) < length < sys.maxsize:
        raise InvalidParameter(f"{BINARY} must be a number of the body's {len(body)} bytes; got {length}")
    if length == 0:
        request = InferRequest([], parameters={"binary_data_output": True})
        return Asked(_whole(model, body), model.requested([], store), request)
    request = bodies.parsed(body[:length], InferRequest)
    options.check_text("id", request.id)
    tensor = _tensor(model, request.inputs, memoryview(body)[length:], settings, store)
    requested = model.requested(request.outputs, store)
    wanted = [request.parameters.get("binary_data_output", False)]
    for each in (*wanted, *(output.parameters.get("binary_data", False) for output in requested)):
        if type(each) is not bool:
            raise InvalidParameter(f"binary_data and binary_data_output are true or false; got {options.quoted(each)}")
    return Asked(tensor, requested, request)


def write(model: Model, asked: Asked, inferred: Inferred, store: TensorStore) -> Response:
    """Write the answer in the form asked for: JSON, or JSON and binary tensors, or some in shared memory."""
    outputs, raws = [], []
    answered = model.as_requested(inferred.outputs, asked.requested)
    for tensor, requested in zip(answered, asked.requested, strict=True):
        output = OutputTensor(tensor.name, tensor.datatype, tensor.shape)
        if requested.place is not None:
            output.parameters = store.write(requested.place, tensors.to_raw(tensor))
        elif asked.is_binary(requested):
            raws.append(tensors.to_raw(tensor))
            output.parameters = {"binary_data_size": len(raws[-1])}
        else:
            output.data = tensors.to_list(tensor)
        outputs.append(output)
    [version] = model.metadata.versions
    answer = InferAnswer(model.metadata.name, version, inferred.parameters, outputs, asked.request.id)
    response = plain(msgspec.to_builtins(answer))
    if not raws:
        return response
    head = bytes(response.body)
    return Response(b"".join([head, *raws]), media_type="application/octet-stream", headers={BINARY: str(len(head))})


def json_bytes(header: str | None) -> int:
    """Return how many bytes of a body are JSON by its `Inference-Header-Content-Length`; all, without this header.

    Raises:
        InvalidParameter: the header is no number.
    """
    if header is None:
        return sys.maxsize
    if not (header.isascii() and header.isdigit() and len(header) < 12):
        raise InvalidParameter(f"{BINARY} must be a number of the body's bytes; got {header[:40]!r}")
    return int(header)


def _whole(model: Model, body: bytes) -> Tensor:
    """Take the whole body as the one input: an element of BYTES, or a row."""
    [own] = model.metadata.inputs
    if model.takes_images:
        return Tensor(own.name, own.datatype, [1], [body])
    return tensors.from_raw(own.name, own.datatype, [1, *own.shape[1:]], body, 0)


def _tensor(
    model: Model, inputs: list[InputTensor], tail: memoryview, settings: IngressSettings, store: TensorStore
) -> Tensor:
    model.check_inputs(inputs)
    [given] = inputs
    most, size, where = settings.max_parts, given.parameters.get("binary_data_size"), store.place(given.parameters)
    # One extent more than a tensor may have is enough to be refused.
    shape = given.shape[: tensors.MOST_DIMENSIONS + 1]
    if (size or 0) != len(tail):
        told = options.quoted(size)
        raise InvalidParameter(f"{len(tail)} bytes follow the JSON; binary_data_size of {given.name!r} is {told}")
    if given.data and (where is not None or size is not None):
        raise InvalidParameter(f"{given.name!r} has data both in the JSON and elsewhere; send them once")
    if where is not None or size is not None:
        raw = tail if where is None else store.read(where, settings.max_request_bytes)
        return tensors.from_raw(given.name, given.datatype, shape, raw, most)
    if given.datatype != "BYTES":
        return tensors.from_list(given.name, given.datatype, shape, given.data)
    return _images(given, shape, most)


def _images(given: InputTensor, shape: list[int], most: int) -> Tensor:
    """Read images in base64, of which `most` are taken."""
    # One element more than are taken is enough to be refused. Of shape [-1, 1] each may be in a list of its own.
    elements = [each[0] if isinstance(each, list) and len(each) == 1 else each for each in given.data[: most + 1]]
    return Tensor(given.name, given.datatype, shape, base64_images.decoded(elements, f"the data of {given.name!r}"))
