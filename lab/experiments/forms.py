"""The forms that an image can be sent in, for `ensemble experiments payloads`."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import cv2
import msgspec
import numpy as np
from numpy.typing import NDArray

from deployments.ingress.open_inference.tensors import Tensor, from_raw, to_raw
from deployments.protocol import seldon_pb2 as seldon
from deployments.protocol import tensorflow_serving_pb2 as tf
from ensemble_serving.protocol import inference_pb2 as pb
from ensemble_serving.transports import Request
from scripts.errors import ScriptError

Pixels = NDArray[np.uint8]
INFER = "/inference.GRPCInferenceService/ModelInfer"
PREDICT, PREDICTIONS = "/seldon.protos.Seldon/Predict", "/api/v1.0/predictions"
BINARY = "inference-header-content-length"
# The way of a form that nobody takes.
NOWHERE = ""


@dataclass(frozen=True)
class Form:
    """A way to send images.

    Attributes:
        name: for the table.
        way: by what it is sent; None if no protocol here takes it.
        of: what it is made of: pixels, uint8 [N,H,W,3], or JPEGs.
        encode: what a client does, from those and the member's name.
        parse: what a server does with the content to have the pixels, of what is not sent.
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


def binary(pixels: NDArray[Any], member: str, datatype: str = "UINT8") -> Request:
    """The protocol's extension for binary tensors."""
    raw = pixels.tobytes()
    return _infer(member, {**_head(pixels, datatype), "parameters": {"binary_data_size": len(raw)}}, raw)


def binary_floats(pixels: Pixels, member: str) -> Request:
    """The same of float32, which no member takes."""
    return binary(pixels.astype(np.float32), member, "FP32")


def _parse_binary(content: bytes) -> Tensor:
    at = content.index(b"}]}") + 3
    told = msgspec.json.decode(content[:at])["inputs"][0]
    return from_raw(told["name"], told["datatype"], told["shape"], memoryview(content)[at:], 0)


def message(pixels: Pixels, member: str) -> Request:
    """A message of gRPC, its tensor raw."""
    request = pb.ModelInferRequest(model_name=member, raw_input_contents=[pixels.tobytes()])
    request.inputs.add(name="pixels", datatype="UINT8", shape=list(pixels.shape))
    return Request(INFER, request.SerializeToString())


def json_lists(pixels: Pixels, _: str) -> Request:
    """Seldon's `ndarray`: numbers in lists in lists."""
    return _predictions({"data": {"ndarray": pixels.tolist()}})


def json_tensor(pixels: Pixels, _: str) -> Request:
    """Seldon's `tensor`: a shape, and the numbers in one list."""
    return _predictions({"data": {"tensor": {"shape": pixels.shape, "values": pixels.ravel().tolist()}}})


def json_proto(pixels: Pixels, _: str) -> Request:
    """Seldon's `tftensor`: a TensorProto, whose raw float32 are base64 in JSON."""
    shape = {"dim": [{"size": str(extent)} for extent in pixels.shape]}
    content = base64.b64encode(pixels.astype(np.float32).tobytes()).decode()
    tensor = {"dtype": "DT_FLOAT", "tensorShape": shape, "tensorContent": content}
    return _predictions({"data": {"tftensor": tensor}})


def _predictions(document: dict[str, Any]) -> Request:
    return Request(PREDICTIONS, json.dumps(document, separators=(",", ":")).encode())


def list_value(pixels: Pixels, _: str) -> Request:
    """The same lists by gRPC, where each number is a message."""
    asked = seldon.SeldonMessage()
    asked.data.ndarray.extend(pixels.tolist())
    return Request(PREDICT, asked.SerializeToString())


def doubles(pixels: Pixels, _: str) -> Request:
    """The same `tensor` by gRPC, its numbers repeated doubles; made as Seldon's own client makes them."""
    tensor = {"shape": pixels.shape, "values": pixels.ravel().tolist()}
    return Request(PREDICT, seldon.SeldonMessage(data={"tensor": tensor}).SerializeToString())


def tensor_proto(pixels: Pixels, *, raw: bool) -> Request:
    """The same `tftensor` by gRPC, its float32 raw or repeated."""
    floats = pixels.astype(np.float32)
    values = {"tensor_content": floats.tobytes()} if raw else {"float_val": floats.ravel()}
    dims = {"dim": [{"size": extent} for extent in pixels.shape]}
    asked = seldon.SeldonMessage(data={"tftensor": {"dtype": tf.DT_FLOAT, "tensor_shape": dims, **values}})
    return Request(PREDICT, asked.SerializeToString())


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
        raise ScriptError("payloads needs pyarrow: pip install pyarrow") from err
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


def seldon_jpeg(images: Sequence[bytes], _: str) -> Request:
    """JPEGs in Seldon's messages by gRPC: one as `binData`, several as a TensorProto."""
    dims = {"dim": [{"size": len(images)}]}
    tensor = {"dtype": tf.DT_STRING, "tensor_shape": dims, "string_val": images}
    asked = {"data": {"tftensor": tensor}} if len(images) > 1 else {"binData": images[0]}
    return Request(PREDICT, seldon.SeldonMessage(**asked).SerializeToString())


def files(images: Sequence[bytes], _: str) -> Request:
    """JPEGs without any protocol, one behind the other."""
    return Request(NOWHERE, msgspec.msgpack.encode(images))


def _decode(content: bytes) -> list[Any]:
    """What decoding them costs, in this process and by the library of the transformer."""
    images = msgspec.msgpack.decode(content, type=list[bytes])
    return [cv2.imdecode(np.frombuffer(image, np.uint8), cv2.IMREAD_COLOR) for image in images]


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


LISTS, LIST_VALUE, DOUBLES = "Seldon REST, lists", "Seldon gRPC, ListValue", "Seldon gRPC, Tensor"
RAW_FLOATS, JPEG, DECODING = "Seldon gRPC, TensorProto, raw float32", "gRPC, JPEG", "decoding the JPEG alone"
FORMS = (
    Form(LISTS, "http", "pixels", json_lists),
    Form("Seldon REST, tensor", "http", "pixels", json_tensor),
    Form("Seldon REST, TensorProto, base64 of float32", "http", "pixels", json_proto),
    Form(LIST_VALUE, "grpc", "pixels", list_value),
    Form(DOUBLES, "grpc", "pixels", doubles),
    Form("Seldon gRPC, TensorProto, repeated float32", "grpc", "pixels", lambda each, _: tensor_proto(each, raw=False)),
    Form(RAW_FLOATS, "grpc", "pixels", lambda each, _: tensor_proto(each, raw=True)),
    Form("Seldon gRPC, JPEG", "grpc", "jpeg", seldon_jpeg),
    Form("REST, lists of uint8", "http", "pixels", nested),
    Form("REST, binary uint8", "http", "pixels", binary),
    Form("REST, binary float32", None, "pixels", binary_floats, _parse_binary),
    Form("gRPC, raw uint8", "grpc", "pixels", message),
    Form("npy of uint8", None, "pixels", npy, _parse_npy),
    Form("Arrow tensor of uint8", None, "pixels", arrow, _parse_arrow),
    Form("TensorFlow Serving REST, base64 of a JPEG", "http", "jpeg", jpeg_text),
    Form("REST, JPEG", "http", "jpeg", jpegs),
    Form(JPEG, "grpc", "jpeg", jpeg_message),
    Form(DECODING, None, "jpeg", files, _decode),
)
