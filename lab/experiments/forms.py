"""The forms that an image can be sent in, and a client that sends them, for `ensemble experiments payloads`."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import cv2
import msgspec
import numpy as np
from numpy.typing import NDArray

from deployments.ingress.open_inference.tensors import Tensor, to_raw
from ensemble_seldon import seldon_pb2 as seldon
from ensemble_serving.protocol import inference_pb2 as pb
from ensemble_serving.transports import NoResponse, Request, Transport, once
from ensemble_tensorflow_serving import tensorflow_serving_pb2 as tf
from lab.benchmark.workloads import changed
from scripts.errors import ScriptError

Pixels = NDArray[np.uint8]
INFER = "/inference.GRPCInferenceService/ModelInfer"
PREDICT, PREDICTIONS = "/seldon.protos.Seldon/Predict", "/api/v1.0/predictions"
BINARY = "inference-header-content-length"
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


def _infer(model: str, head: dict[str, Any]) -> Request:
    return _json(f"/v2/models/{model}/infer", {"inputs": [head]})


def _binary(model: str, head: dict[str, Any], raw: bytes) -> Request:
    """Send a tensor behind the JSON, by the protocol's extension for binary tensors."""
    request = _infer(model, {**head, "parameters": {"binary_data_size": len(raw)}})
    return Request(request.path, request.body + raw, ((BINARY, str(len(request.body))),))


def _head(pixels: Pixels) -> dict[str, Any]:
    return {"name": "pixels", "datatype": "UINT8", "shape": list(pixels.shape)}


def _jpegs(images: Sequence[bytes]) -> dict[str, Any]:
    return {"name": "image", "datatype": "BYTES", "shape": [len(images)]}


def _raw(images: Sequence[bytes]) -> bytes:
    return to_raw(Tensor("image", "BYTES", [len(images)], images))


def _seldon(**data: Any) -> Request:
    return Request(PREDICT, seldon.SeldonMessage(**data).SerializeToString())


def _json(path: str, document: dict[str, Any]) -> Request:
    return Request(path, json.dumps(document, separators=(",", ":")).encode())


def _message(model: str, head: dict[str, Any], raw: bytes) -> Request:
    message = pb.ModelInferRequest(model_name=model, raw_input_contents=[raw])
    message.inputs.add(**head)
    return Request(INFER, message.SerializeToString())


def _list_value(pixels: Pixels, _: str) -> Request:
    asked = seldon.SeldonMessage()
    asked.data.ndarray.extend(pixels.tolist())
    return Request(PREDICT, asked.SerializeToString())


def _tensor_proto(shape: Sequence[int], **values: Any) -> Request:
    return _seldon(data={"tftensor": {"tensor_shape": {"dim": [{"size": extent} for extent in shape]}, **values}})


def _seldon_jpeg(images: Sequence[bytes], _: str) -> Request:
    if len(images) == 1:
        return _seldon(binData=images[0])
    return _tensor_proto([len(images)], dtype=tf.DT_STRING, string_val=images)


def _npy(pixels: Pixels, _: str) -> Request:
    np.save(stream := io.BytesIO(), pixels, allow_pickle=False)
    return Request(NOWHERE, stream.getvalue())


def _arrow(pixels: Pixels, _: str) -> Request:
    pyarrow = _pyarrow()
    stream = pyarrow.BufferOutputStream()
    pyarrow.ipc.write_tensor(pyarrow.Tensor.from_numpy(pixels), stream)
    return Request(NOWHERE, stream.getvalue().to_pybytes())


def _pyarrow() -> Any:
    try:
        import pyarrow
    except ImportError as err:
        raise ScriptError("payloads needs pyarrow: pip install pyarrow") from err
    return pyarrow


def _decode(content: bytes) -> list[Any]:
    """Decode JPEGs in this process, by the library of the transformer."""
    images = msgspec.msgpack.decode(content, type=list[bytes])
    return [cv2.imdecode(np.frombuffer(image, np.uint8), cv2.IMREAD_COLOR) for image in images]


def _placed(file: Path, region: str, raw: bytes, head: dict[str, Any], member: str) -> Request:
    """Leave bytes in a file of /dev/shm, and name the place by the name under which the file is registered."""
    with file.open("r+b") as stream:
        stream.write(raw)
    place = {"shared_memory_region": region, "shared_memory_byte_size": len(raw)}
    return _infer(member, {**head, "parameters": place})


def shared(file: Path, region: str) -> Form:
    """Leave pixels in shared memory, of which the request names the place."""

    def encode(pixels: Pixels, member: str) -> Request:
        return _placed(file, region, pixels.tobytes(), _head(pixels), member)

    return Form("shared memory, uint8", "http", "pixels", encode)


def shared_jpegs(file: Path, region: str) -> Callable[[Sequence[bytes], str], Request]:
    """Leave JPEGs in shared memory for the ensemble, each behind its length."""
    return lambda images, member: _placed(file, region, _raw(images), _jpegs(images), member)


LISTS, LIST_VALUE, DOUBLES = "Seldon REST, lists", "Seldon gRPC, ListValue", "Seldon gRPC, Tensor"
RAW_FLOATS, JPEG, DECODING = "Seldon gRPC, TensorProto, raw float32", "gRPC, JPEG", "decoding the JPEG alone"
# Seldon's `tensor` is made as Seldon's own client makes it.
NESTED, BINARY_UINT8 = "REST, lists of uint8", "REST, binary uint8"
SERIALIZED = {"npy": "npy of uint8", "Arrow": "Arrow tensor of uint8", "a Protobuf": "gRPC, raw uint8"}
FORMS = (
    Form(LISTS, "http", "pixels", lambda pixels, _: _json(PREDICTIONS, {"data": {"ndarray": pixels.tolist()}})),
    Form(LIST_VALUE, "grpc", "pixels", _list_value),
    Form(
        DOUBLES,
        "grpc",
        "pixels",
        lambda pixels, _: _seldon(data={"tensor": {"shape": pixels.shape, "values": pixels.ravel().tolist()}}),
    ),
    Form(
        RAW_FLOATS,
        "grpc",
        "pixels",
        lambda pixels, _: _tensor_proto(
            pixels.shape, dtype=tf.DT_FLOAT, tensor_content=pixels.astype(np.float32).tobytes()
        ),
    ),
    Form("Seldon gRPC, JPEG", "grpc", "jpeg", _seldon_jpeg),
    Form(NESTED, "http", "pixels", lambda pixels, model: _infer(model, {**_head(pixels), "data": pixels.tolist()})),
    Form(BINARY_UINT8, "http", "pixels", lambda pixels, model: _binary(model, _head(pixels), pixels.tobytes())),
    Form(
        SERIALIZED["a Protobuf"],
        "grpc",
        "pixels",
        lambda pixels, model: _message(model, _head(pixels), pixels.tobytes()),
    ),
    Form(SERIALIZED["npy"], None, "pixels", _npy, lambda content: np.load(io.BytesIO(content), allow_pickle=False)),
    Form(
        SERIALIZED["Arrow"],
        None,
        "pixels",
        _arrow,
        lambda content: _pyarrow().ipc.read_tensor(_pyarrow().BufferReader(content)).to_numpy(),
    ),
    Form("REST, JPEG", "http", "jpeg", lambda images, _: _binary("ensemble", _jpegs(images), _raw(images))),
    Form(JPEG, "grpc", "jpeg", lambda images, _: _message("ensemble", _jpegs(images), _raw(images))),
    Form(DECODING, None, "jpeg", lambda images, _: Request(NOWHERE, msgspec.msgpack.encode(images)), _decode),
)


PREFIX, REGION = "es-payloads", "payloads"
# The statuses by which a server refuses a form.
REFUSED = frozenset({400, 413, 422})


@dataclass(frozen=True)
class Repeated:
    """A protocol of one request, which is sent again and again."""

    one: Request
    name: ClassVar[str] = "payload"

    async def described(self, transport: Transport, url: str, key: str, ca_file: Path | None = None) -> Repeated:
        """See `Protocol.described`; the model is not described."""
        return self

    def request(self, images: Sequence[bytes]) -> Request:
        """Return the request."""
        return self.one

    def seen(self, body: bytes, label: str) -> int:
        """See `Protocol.seen`; no label is known."""
        return 0


def answers(url: str, request: Request) -> bool:
    """Tell whether a server answers a request, or refuses its form; raise ScriptError for another failure."""
    try:
        response = once(url, request)
    except NoResponse as err:
        raise ScriptError(str(err)) from err
    if not response.ok and response.status not in REFUSED:
        raise ScriptError(f"{request.path} was answered with {response.status}: {response.body[:500]!r}")
    return response.ok


# Lets clients use shared memory.
share_memory = changed({"ingress": {"shared_memory_prefix": PREFIX}})


def register(http_url: str, file: Path) -> None:
    """Let the server read a file of /dev/shm, for as long as it runs; raise ScriptError if it refuses."""
    body = json.dumps({"key": f"/{file.name}", "byte_size": file.stat().st_size}).encode()
    if not answers(http_url, Request(f"/v2/systemsharedmemory/region/{REGION}/register", body)):
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
