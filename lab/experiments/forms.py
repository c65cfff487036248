"""The forms that an image can be sent in, for `ensemble experiments payloads`; and images in shared memory."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import cv2
import msgspec
import numpy as np
from numpy.typing import NDArray

from ensemble_interop.remote.open_inference import infer_body, infer_message
from ensemble_interop.remote.tensors import BYTES, Content
from ensemble_interop.seldon import seldon_pb2 as seldon
from ensemble_interop.tensorflow_serving import tensorflow_serving_pb2 as tf
from ensemble_serving.transports import NoResponse, Request, once
from lab.benchmark.workloads import changed
from scripts.errors import ScriptError

Pixels = NDArray[np.uint8]
Jpegs = Sequence[bytes]
INFER = "/inference.GRPCInferenceService/ModelInfer"
PREDICT, PREDICTIONS = "/seldon.protos.Seldon/Predict", "/api/v1.0/predictions"
ENSEMBLE = "ensemble"
# The path of a form that no server takes.
NOWHERE = ""


@dataclass(frozen=True)
class Form:
    """A way to send images.

    Attributes:
        name: for the table.
        way: the protocol that carries it; None if no protocol here does.
        of: its source: pixels, uint8 [N,H,W,3], or JPEGs.
        encode: the client's encoding of the source and the member's name.
        parse: a server's decoding of a form that is not sent.
    """

    name: str
    way: Literal["http", "grpc"] | None
    of: Literal["pixels", "jpeg"]
    encode: Callable[[Any, str], Request]
    parse: Callable[[bytes], Any] | None = None


def tensor(images: Pixels | Jpegs) -> Content:
    """Make a tensor of the Open Inference Protocol: a member's pixels, or the ensemble's JPEGs."""
    if isinstance(images, np.ndarray):
        return Content("pixels", "UINT8", images.shape, images)
    return Content("image", BYTES, [len(images)], images)


def _json(path: str, document: dict[str, Any]) -> Request:
    return Request(path, json.dumps(document, separators=(",", ":")).encode())


def _infer(images: Pixels | Jpegs, model: str, **content: Any) -> Request:
    """Send JSON that has the values, or tells where they are."""
    described = tensor(images)
    head = {"name": described.name, "datatype": described.datatype, "shape": list(described.shape), **content}
    return _json(f"/v2/models/{model}/infer", {"inputs": [head]})


def _binary(images: Pixels | Jpegs, model: str) -> Request:
    body, headers = infer_body([tensor(images)], is_binary=True)
    return Request(f"/v2/models/{model}/infer", body, tuple(headers.items()))


def _message(images: Pixels | Jpegs, model: str) -> Request:
    return Request(INFER, infer_message(model, [tensor(images)]).SerializeToString())


def _numbers(pixels: Pixels, model: str) -> Request:
    """Send numbers one by one, as protobuf's counterpart of lists in JSON."""
    message, content = infer_message(model, []), tensor(pixels)
    described = message.inputs.add(name=content.name, datatype=content.datatype, shape=content.shape)
    described.contents.uint_contents.extend(pixels.ravel().tolist())
    return Request(INFER, message.SerializeToString())


def _seldon(**data: Any) -> Request:
    return Request(PREDICT, seldon.SeldonMessage(**data).SerializeToString())


def _list_value(pixels: Pixels, _: str) -> Request:
    return _seldon(data={"ndarray": pixels.tolist()})


def _doubles(pixels: Pixels, _: str) -> Request:
    """Make Seldon's `tensor` as Seldon's own client makes it."""
    return _seldon(data={"tensor": {"shape": pixels.shape, "values": pixels.ravel().tolist()}})


def _raw_floats(pixels: Pixels, _: str) -> Request:
    return _tensor_proto(pixels.shape, dtype=tf.DT_FLOAT, tensor_content=pixels.astype(np.float32).tobytes())


def _seldon_jpeg(images: Jpegs, _: str) -> Request:
    if len(images) == 1:
        return _seldon(binData=images[0])
    return _tensor_proto([len(images)], dtype=tf.DT_STRING, string_val=images)


def _tensor_proto(shape: Sequence[int], **values: Any) -> Request:
    return _seldon(data={"tftensor": {"tensor_shape": {"dim": [{"size": extent} for extent in shape]}, **values}})


def _npy(pixels: Pixels, _: str) -> Request:
    np.save(stream := io.BytesIO(), pixels, allow_pickle=False)
    return Request(NOWHERE, stream.getvalue())


def _arrow(pixels: Pixels, _: str) -> Request:
    import pyarrow

    stream = pyarrow.BufferOutputStream()
    pyarrow.ipc.write_tensor(pyarrow.Tensor.from_numpy(pixels), stream)
    return Request(NOWHERE, stream.getvalue().to_pybytes())


def _from_arrow(content: bytes) -> Any:
    import pyarrow

    return pyarrow.ipc.read_tensor(pyarrow.BufferReader(content)).to_numpy()


def _decode(content: bytes) -> list[Any]:
    """Decode JPEGs in this process, by the library of the transformer."""
    images = msgspec.msgpack.decode(content, type=list[bytes])
    return [cv2.imdecode(np.frombuffer(image, np.uint8), cv2.IMREAD_COLOR) for image in images]


NUMBERS = "gRPC, numbers of uint8"
RAW_FLOATS, SELDON_JPEG = "Seldon gRPC, TensorProto, raw float32", "Seldon gRPC, JPEG"
JPEG, DECODING = "gRPC, JPEG", "decoding the JPEG alone"
FORMS = (
    Form("Seldon REST, lists", "http", "pixels", lambda x, _: _json(PREDICTIONS, {"data": {"ndarray": x.tolist()}})),
    Form("Seldon gRPC, ListValue", "grpc", "pixels", _list_value),
    Form("Seldon gRPC, Tensor", "grpc", "pixels", _doubles),
    Form(RAW_FLOATS, "grpc", "pixels", _raw_floats),
    Form(SELDON_JPEG, "grpc", "jpeg", _seldon_jpeg),
    Form("REST, lists of uint8", "http", "pixels", lambda x, member: _infer(x, member, data=x.tolist())),
    Form("REST, binary uint8", "http", "pixels", _binary),
    Form(NUMBERS, "grpc", "pixels", _numbers),
    Form("gRPC, raw uint8", "grpc", "pixels", _message),
    Form("npy of uint8", None, "pixels", _npy, lambda content: np.load(io.BytesIO(content), allow_pickle=False)),
    Form("Arrow tensor of uint8", None, "pixels", _arrow, _from_arrow),
    Form("REST, JPEG", "http", "jpeg", lambda images, _: _binary(images, ENSEMBLE)),
    Form(JPEG, "grpc", "jpeg", lambda images, _: _message(images, ENSEMBLE)),
    Form(DECODING, None, "jpeg", lambda images, _: Request(NOWHERE, msgspec.msgpack.encode(images)), _decode),
)


PREFIX, REGION = "es-payloads", "payloads"
# The statuses by which a server refuses a form.
REFUSED = frozenset({400, 413, 422})
# Lets clients use shared memory.
share_memory = changed({"ingress": {"shared_memory_prefix": PREFIX}})


def shared(file: Path) -> Form:
    """Leave pixels in shared memory, of which the request names the place."""
    return Form("shared memory, uint8", "http", "pixels", lambda pixels, member: placed(file, pixels, member))


def placed(file: Path, images: Pixels | Jpegs, model: str) -> Request:
    """Leave images in a registered file of /dev/shm, JPEGs each behind its length, and name the place."""
    raw = tensor(images).raw
    with file.open("r+b") as stream:
        stream.write(raw)
    place = {"shared_memory_region": REGION, "shared_memory_byte_size": len(raw)}
    return _infer(images, model, parameters=place)


def answers(url: str, request: Request) -> bool:
    """Tell whether a server answers a request, or refuses its form; raise ScriptError for another failure."""
    try:
        response = once(url, request)
    except NoResponse as err:
        raise ScriptError(str(err)) from err
    if not response.ok and response.status not in REFUSED:
        raise ScriptError(f"{request.path} was answered with {response.status}: {response.body[:500]!r}")
    return response.ok


def register(http_url: str, file: Path) -> None:
    """Let the server read a file of /dev/shm, for as long as it runs; raise ScriptError if it refuses."""
    asked = {"key": f"/{file.name}", "byte_size": file.stat().st_size}
    if not answers(http_url, _json(f"/v2/systemsharedmemory/region/{REGION}/register", asked)):
        raise ScriptError("the server refuses to read shared memory")


@contextmanager
def region(size: int, prefix: str = PREFIX) -> Iterator[Path]:
    """Make a file of /dev/shm that the server may use; it is removed in the end."""
    file = Path("/dev/shm") / f"{prefix}-{os.getpid()}"  # noqa: S108
    file.write_bytes(bytes(size))
    try:
        yield file
    finally:
        file.unlink()
