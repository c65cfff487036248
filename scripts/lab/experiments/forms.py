"""The forms that an image can be sent in, for `ensemble experiments payloads`."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from deployments.ingress.open_inference.tensors import Tensor, from_list, from_raw, to_raw
from deployments.protocol import inference_pb2 as pb
from ensemble_serving.transports import Request
from scripts.errors import ScriptError

Pixels = NDArray[np.uint8]
FLOATS = "FP32"
INFER = "/inference.GRPCInferenceService/ModelInfer"
BINARY = "inference-header-content-length"
# The way of a form that nobody takes.
NOWHERE = ""


@dataclass(frozen=True)
class Form:
    """A way to send images.

    Attributes:
        name: for the table.
        way: by what it is sent; None if this application does not take it.
        of: what it is made of: pixels, uint8 [N,H,W,3], or JPEGs.
        encode: what a client does, from those and the member's name.
        parse: what a server does with the content to have the pixels; None for what it decodes.
    """

    name: str
    way: Literal["http", "grpc"] | None
    of: Literal["pixels", "jpeg"]
    encode: Callable[[Any, str], Request]
    parse: Callable[[bytes], Any] | None = None


def _infer(member: str, head: dict[str, Any], binary: bytes | None = None) -> Request:
    body = json.dumps({"inputs": [head]}, separators=(",", ":")).encode()
    path = f"/v2/models/{member}/infer"
    if binary is None:
        return Request(path, body)
    return Request(path, body + binary, ((BINARY, str(len(body))),))


def _head(pixels: NDArray[Any], datatype: str) -> dict[str, Any]:
    return {"name": "pixels", "datatype": datatype, "shape": list(pixels.shape)}


def nested(pixels: Pixels, member: str) -> Request:
    """JSON, numbers in lists in lists."""
    return _infer(member, {**_head(pixels, "UINT8"), "data": pixels.tolist()})


def _parse_nested(content: bytes) -> Tensor:
    told = msgspec.json.decode(content)["inputs"][0]
    return from_list(told["name"], told["datatype"], told["shape"], told["data"])


def binary(pixels: NDArray[Any], member: str, datatype: str = "UINT8") -> Request:
    """The protocol's extension for binary tensors."""
    raw = pixels.tobytes()
    return _infer(member, {**_head(pixels, datatype), "parameters": {"binary_data_size": len(raw)}}, raw)


def binary_floats(pixels: Pixels, member: str) -> Request:
    """The same of float32."""
    return binary(pixels.astype(np.float32), member, FLOATS)


def _parse_binary(content: bytes) -> Tensor:
    at = content.index(b"}]}") + 3
    told = msgspec.json.decode(content[:at])["inputs"][0]
    return from_raw(told["name"], told["datatype"], told["shape"], memoryview(content)[at:], 0)


def message(pixels: NDArray[Any], member: str, datatype: str, *, raw: bool) -> Request:
    """A message of gRPC, its tensor raw or as repeated numbers."""
    request = pb.ModelInferRequest(model_name=member)
    request.inputs.add(name="pixels", datatype=datatype, shape=list(pixels.shape))
    if raw:
        request.raw_input_contents.append(pixels.tobytes())
    elif datatype == FLOATS:
        request.inputs[0].contents.fp32_contents.extend(pixels.ravel())
    else:
        request.inputs[0].contents.uint_contents.extend(pixels.ravel())
    return Request(INFER, request.SerializeToString())


def _parse_message(content: bytes) -> Tensor:
    request = pb.ModelInferRequest.FromString(content)
    [told] = request.inputs
    if request.raw_input_contents:
        return from_raw(told.name, told.datatype, told.shape, request.raw_input_contents[0], 0)
    numbers = told.contents.fp32_contents or told.contents.uint_contents
    return from_list(told.name, told.datatype, list(told.shape), numbers)


def npy(pixels: Pixels, _: str) -> Request:
    """Numpy's own file."""
    stream = io.BytesIO()
    np.save(stream, pixels, allow_pickle=False)
    return Request(NOWHERE, stream.getvalue())


def _parse_npy(content: bytes) -> NDArray[Any]:
    array: NDArray[Any] = np.load(io.BytesIO(content), allow_pickle=False)
    return array


def arrow(pixels: Pixels, _: str) -> Request:
    """A tensor message of Apache Arrow's IPC format.

    Raises:
        ScriptError: pyarrow is missing.
    """
    pyarrow = _arrow()
    stream = pyarrow.BufferOutputStream()
    pyarrow.ipc.write_tensor(pyarrow.Tensor.from_numpy(pixels), stream)
    return Request(NOWHERE, stream.getvalue().to_pybytes())


def _parse_arrow(content: bytes) -> NDArray[Any]:
    pyarrow = _arrow()
    array: NDArray[Any] = pyarrow.ipc.read_tensor(pyarrow.BufferReader(content)).to_numpy()
    return array


def _arrow() -> Any:
    try:
        import pyarrow
    except ImportError as err:
        raise ScriptError("payloads needs pyarrow: pip install -e '.[benchmark]'") from err
    return pyarrow


def jpegs(images: Sequence[bytes], _: str) -> Request:
    """JPEGs to the ensemble, as one binary tensor of BYTES."""
    raw = to_raw(Tensor("image", "BYTES", [len(images)], images))
    head = {"name": "image", "datatype": "BYTES", "shape": [len(images)], "parameters": {"binary_data_size": len(raw)}}
    return _infer("ensemble", head, raw)


def jpeg_message(images: Sequence[bytes], _: str) -> Request:
    """The same by gRPC."""
    request = pb.ModelInferRequest(model_name="ensemble")
    request.inputs.add(name="image", datatype="BYTES", shape=[len(images)])
    request.raw_input_contents.append(to_raw(Tensor("image", "BYTES", [len(images)], images)))
    return Request(INFER, request.SerializeToString())


def jpeg_text(images: Sequence[bytes], _: str) -> Request:
    """JPEGs as base64 in JSON, as TensorFlow Serving's API has them."""
    body = json.dumps({"instances": [{"b64": base64.b64encode(image).decode()} for image in images]})
    return Request("/v1/models/ensemble:predict", body.encode())


def shared(file: Path, region: str) -> Form:
    """Pixels left in shared memory, of which the request names the place.

    Args:
        file: in /dev/shm, large enough.
        region: the name by which it is registered.
    """

    def encode(pixels: Pixels, member: str) -> Request:
        with file.open("r+b") as stream:
            stream.write(pixels.tobytes())
        place = {"shared_memory_region": region, "shared_memory_byte_size": pixels.nbytes}
        return _infer(member, {**_head(pixels, "UINT8"), "parameters": place})

    return Form("shared memory, uint8", "http", "pixels", encode)


def shared_jpegs(file: Path, region: str) -> Callable[[Sequence[bytes], str], Request]:
    """The same of JPEGs for the ensemble, each behind its length.

    Args:
        file: in /dev/shm, large enough.
        region: the name by which it is registered.
    """

    def encode(images: Sequence[bytes], member: str) -> Request:
        raw = to_raw(Tensor("image", "BYTES", [len(images)], images))
        with file.open("r+b") as stream:
            stream.write(raw)
        place = {"shared_memory_region": region, "shared_memory_byte_size": len(raw)}
        return _infer(member, {"name": "image", "datatype": "BYTES", "shape": [len(images)], "parameters": place})

    return encode


FORMS = (
    Form("JSON, nested lists of uint8", "http", "pixels", nested, _parse_nested),
    Form("JSON, base64 of a JPEG", "http", "jpeg", jpeg_text),
    Form("REST, binary float32", None, "pixels", binary_floats, _parse_binary),
    Form("REST, binary uint8", "http", "pixels", binary, _parse_binary),
    Form(
        "gRPC, repeated float32",
        None,
        "pixels",
        lambda pixels, member: message(pixels.astype(np.float32), member, FLOATS, raw=False),
        _parse_message,
    ),
    Form(
        "gRPC, raw float32",
        None,
        "pixels",
        lambda pixels, member: message(pixels.astype(np.float32), member, FLOATS, raw=True),
        _parse_message,
    ),
    Form(
        "gRPC, raw uint8",
        "grpc",
        "pixels",
        lambda pixels, member: message(pixels, member, "UINT8", raw=True),
        _parse_message,
    ),
    Form("npy of uint8", None, "pixels", npy, _parse_npy),
    Form("Arrow tensor of uint8", None, "pixels", arrow, _parse_arrow),
    Form("REST, JPEG", "http", "jpeg", jpegs),
    Form("gRPC, JPEG", "grpc", "jpeg", jpeg_message),
)
