"""Protocols that carry tensors: the Open Inference Protocol and TensorFlow Serving's predict API.

Sources: https://github.com/kserve/open-inference-protocol, with Triton's extension for binary tensor data, and
https://github.com/tensorflow/serving/blob/master/tensorflow/serving/g3doc/api_rest.md
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Self
from urllib.parse import quote, urlsplit

import numpy as np
from numpy.typing import NDArray

from ensemble_interop.remote.tensors import BYTES, Content, Tensor
from ensemble_serving.transports import Request, Transport
from scripts.errors import ScriptError

OPEN_INFERENCE, TENSORFLOW_SERVING = "open-inference", "tensorflow-serving"
BINARY = b"binary_tensor_data"
INFER = "/inference.GRPCInferenceService/ModelInfer"
SIGNATURE = "serving_default"
PREDICT = "/tensorflow.serving.PredictionService/Predict"
DESCRIBE_TIMEOUT_S = 10.0


def filled(inputs: Iterable[Tensor], images: Sequence[bytes], shapes: Mapping[str, tuple[int, ...]]) -> list[Content]:
    """Fill the inputs of a request; `shapes` are of inputs whose extents are open, without the batch, by name.

    Raises:
        ScriptError: a shape or a datatype is not known, or the model takes another number of images.
    """
    return [_filled(each, images, shapes.get(each.name)) for each in inputs]


def _filled(tensor: Tensor, images: Sequence[bytes], given: tuple[int, ...] | None) -> Content:
    name, datatype, shape = tensor.name, tensor.datatype, tensor.shape
    count = len(images)
    first, rest = shape[:1], given if given is not None else shape[1:]
    if first and first[0] not in {-1, count}:
        raise ScriptError(f"--batch {count}: the model's input {name!r} takes {first[0]} at a time")
    if datatype == BYTES:
        # Some servers have a second dimension of 1.
        return Content(name, BYTES, (count, *(1 for _ in rest)), images)
    if min(rest, default=1) < 1:
        open_extents = ",".join(str(extent) for extent in rest)
        raise ScriptError(f"--shape: the server leaves extents of {name!r} open; give --shape {name}:{open_extents}")
    try:
        dtype = np.dtype("float16" if datatype == "FP16" else datatype.lower().replace("fp", "float"))
    except TypeError as err:
        raise ScriptError(f"--model: its input {name!r} is of {datatype}, which nothing here can be made of") from err
    if len(rest) == 3 and 3 in (rest[0], rest[2]):
        values = np.stack([_pixels(image, rest) for image in images]).astype(dtype)
    else:
        values = np.random.default_rng(0).integers(0, 2, (count, *rest)).astype(dtype)
    return Content(name, datatype, (count, *rest), values)


def _pixels(image: bytes, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Decode an image's pixels, from 0 to 255, in a shape of three channels that come first or last."""
    import cv2

    last = shape[2] == 3
    height, width = shape[:2] if last else shape[1:]
    pixels = cv2.imdecode(np.frombuffer(image, np.uint8), cv2.IMREAD_COLOR)
    if pixels is None:
        raise ScriptError("--images: one of them can't be decoded")
    resized = cv2.resize(pixels, (width, height), interpolation=cv2.INTER_AREA).astype(np.uint8)
    return np.ascontiguousarray(resized if last else resized.transpose(2, 0, 1))


async def inputs(kind: str, url: str, model: str, key: str, ca_file: Path | None) -> tuple[Tensor, ...]:
    """Request the inputs of a server's model as a remote member of a kind does; the URL's path does not matter.

    Raises:
        ScriptError: the server is not there, or has no such model.
    """
    from ensemble_interop.remote.client import CallError, Unavailable
    from ensemble_interop.remote.endpoints import described
    from ensemble_interop.remote.open_inference import OpenInference as OpenInferenceMember
    from ensemble_interop.tensorflow_serving.member import TensorFlowServing as TensorFlowServingMember

    member = OpenInferenceMember if kind == OPEN_INFERENCE else TensorFlowServingMember
    # Its bearer token is known already.
    keyed = type("Keyed", (member,), {"authorization": lambda _: {"authorization": f"Bearer {key}"} if key else {}})
    parts = urlsplit(url)
    trusted = ca_file if parts.scheme in {"https", "grpcs"} else None
    config = keyed(
        name="model", url=f"{parts.scheme}://{parts.netloc}", model=model, ca_file=trusted, kind=kind.replace("-", "_")
    )
    try:
        return tuple((await described(config, 0, DESCRIBE_TIMEOUT_S)).inputs)
    except (Unavailable, OSError) as err:
        raise ScriptError(f"URL: no server with a model {model!r} that is ready responds at {url}: {err}") from err
    except CallError as err:
        raise ScriptError(f"--model: {url} has no model {model!r}: {err}") from err


@dataclass(frozen=True)
class TensorProtocol:
    """A request that carries tensors.

    Attributes:
        shapes: of inputs whose extents the server leaves open, without the batch, by name.
        inputs: as the server describes them.
        binary: whether the server takes tensors as bytes over HTTP.
    """

    name: ClassVar[str]
    model: str
    is_grpc: bool
    shapes: Mapping[str, tuple[int, ...]]
    inputs: tuple[Tensor, ...] = ()
    binary: bool = False

    async def described(self, transport: Transport, url: str, key: str, ca_file: Path | None = None) -> Self:
        """See `RequestBuilder.described`."""
        return replace(self, inputs=await inputs(self.name, url, self.model, key, ca_file))

    def seen(self, body: bytes, label: str) -> int:
        """Return no flag: these answers are not looked into."""
        return 0


class OpenInference(TensorProtocol):
    """An infer request, over HTTP or gRPC."""

    name: ClassVar[str] = OPEN_INFERENCE

    async def described(self, transport: Transport, url: str, key: str, ca_file: Path | None = None) -> Self:
        """See `RequestBuilder.described`."""
        found = await super().described(transport, url, key, ca_file)
        is_binary = not self.is_grpc and BINARY in (await transport.send(Request("/v2", method="GET"))).body
        return replace(found, binary=is_binary)

    def request(self, images: Sequence[bytes]) -> Request:
        """See `RequestBuilder.request`."""
        from ensemble_interop.remote.open_inference import infer_body, infer_message

        tensors = filled(self.inputs, images, self.shapes)
        if self.is_grpc:
            return Request(INFER, infer_message(self.model, tensors).SerializeToString())
        body, headers = infer_body(tensors, is_binary=self.binary)
        return Request(f"/v2/models/{quote(self.model, safe='')}/infer", body, tuple(headers.items()))


class TensorFlowServing(TensorProtocol):
    """A predict request, over REST or gRPC."""

    name: ClassVar[str] = TENSORFLOW_SERVING

    def request(self, images: Sequence[bytes]) -> Request:
        """See `RequestBuilder.request`."""
        from ensemble_interop.tensorflow_serving import tensorflow_serving_pb2 as pb
        from ensemble_interop.tensorflow_serving.member import predict_body, predict_message

        tensors = filled(self.inputs, images, self.shapes)
        if self.is_grpc:
            spec = pb.ModelSpec(name=self.model, signature_name=SIGNATURE)
            return Request(PREDICT, predict_message(spec, tensors).SerializeToString())
        body, headers = predict_body(tensors, SIGNATURE)
        return Request(f"/v1/models/{quote(self.model, safe='')}:predict", body, tuple(headers.items()))
