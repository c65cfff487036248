"""The Open Inference Protocol by gRPC, as a client.

Source: https://github.com/kserve/open-inference-protocol
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deployments.protocol import inference_pb2 as pb
from deployments.remote.channels import Channel
from deployments.remote.credentials import Token
from deployments.remote.failures import Nonsense, Unreachable
from deployments.remote.server import Answered
from deployments.remote.settings import RemoteConfig
from deployments.remote.tensors import FLOATS, Described, Fit, Tensor, highest

SERVICE = "/inference.GRPCInferenceService"


class OpenInferenceGrpc:
    """One address of a server."""

    def __init__(self, config: RemoteConfig, where: str, token: Token, scores: int) -> None:
        """Set the IP address, the token, and the most scores that an answer holds."""
        self._channel = Channel(config, where, token, scores)
        self._named = {"name": config.model_name, "version": config.version or ""}
        self._config = config

    async def describe(self, timeout_s: float) -> Described:
        """See `Server.describe`."""
        ready = await self._call("ModelReady", pb.ModelReadyRequest(**self._named), pb.ModelReadyResponse, timeout_s)
        if not ready.ready:
            raise Unreachable(f"its model {self._config.model_name!r} is not ready")
        request = pb.ModelMetadataRequest(**self._named)
        told = await self._call("ModelMetadata", request, pb.ModelMetadataResponse, timeout_s)
        inputs, outputs = (
            [Tensor(each.name, each.datatype, tuple(each.shape)) for each in tensors]
            for tensors in (told.inputs, told.outputs)
        )
        return Described(inputs, outputs, self._config.version or highest(told.versions))

    async def infer(
        self, how: Fit, images: NDArray[Any] | Sequence[bytes], headers: Mapping[str, str], timeout_s: float
    ) -> Answered:
        """See `Server.infer`."""
        request = pb.ModelInferRequest(
            model_name=self._config.model_name, model_version=self._config.version or "", id=secrets.token_hex(4)
        )
        shape, content = raw(how, images)
        request.inputs.add(name=how.input.name, datatype=how.input.datatype, shape=shape)
        request.outputs.add(name=how.output)
        request.raw_input_contents.append(content)
        answer = await self._call("ModelInfer", request, pb.ModelInferResponse, timeout_s, headers)
        return _scores(answer, how), answer.model_version

    async def _call(
        self, name: str, request: Any, answer: Any, timeout_s: float, headers: Mapping[str, str] | None = None
    ) -> Any:
        return await self._channel.call(f"{SERVICE}/{name}", request, answer, timeout_s, headers)

    async def close(self) -> None:
        """See `Server.close`."""
        await self._channel.close()


def raw(how: Fit, images: NDArray[Any] | Sequence[bytes]) -> tuple[list[int], bytes]:
    """The shape and the bytes of an input: an array's own, or of each image its length, 4 bytes, and itself."""
    if isinstance(images, np.ndarray):
        return list(images.shape), images.tobytes()
    parts = [part for image in images for part in (len(image).to_bytes(4, "little"), image)]
    return bytes_shape(how, len(images)), b"".join(parts)


def bytes_shape(how: Fit, count: int) -> list[int]:
    """The shape of so many images as they were sent: some servers have a second dimension."""
    return [count, *([1] * (len(how.input.shape) - 1))]


def _scores(answer: pb.ModelInferResponse, how: Fit) -> NDArray[Any]:
    names = [output.name for output in answer.outputs]
    if how.output not in names:
        raise Nonsense(f"it answered {names} and not {how.output!r}")
    position = names.index(how.output)
    output = answer.outputs[position]
    if output.datatype not in FLOATS:
        raise Nonsense(f"it answered {output.datatype}, no floating point")
    try:
        if answer.raw_output_contents:
            values = np.frombuffer(answer.raw_output_contents[position], FLOATS[output.datatype])
        else:
            contents = output.contents
            values = np.array(contents.fp64_contents if output.datatype == "FP64" else contents.fp32_contents)
        return values.reshape(tuple(output.shape))
    except (ValueError, IndexError) as err:
        raise Nonsense(f"its answer is not of the shape that it tells, {list(output.shape)[:8]}") from err
