"""gRPC: loading and unloading members, an extension of the Open Inference Protocol."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from google.protobuf.message import Message

from deployments.contract.errors import ImageTooLarge
from deployments.ingress.grpc.calls import Calls, Rpc
from deployments.ingress.open_inference.grpc import SERVICE, parameters
from deployments.observe.observer import Call
from ensemble_serving.protocol import inference_pb2 as pb
from graph.features.loading.control import ModelControl
from graph.features.loading.parameters import MAX_BYTES


def calls(control: ModelControl) -> Calls:
    """Make the extension's methods."""

    def rpc(change: Callable[[str, Mapping[str, Any]], Awaitable[None]], answer: type[Message]) -> Rpc:
        async def handler(request: Any, call: Call) -> Message:
            control.check_permitted(call.caller.name)
            if (size := request.ByteSize()) > MAX_BYTES:
                raise ImageTooLarge(f"the request has {size} bytes; at most {MAX_BYTES} are accepted")
            await change(request.model_name, parameters(request.parameters))
            return answer()

        return Rpc(handler)

    return {
        f"{SERVICE.full_name}/RepositoryModelLoad": rpc(control.load, pb.RepositoryModelLoadResponse),
        f"{SERVICE.full_name}/RepositoryModelUnload": rpc(control.unload, pb.RepositoryModelUnloadResponse),
    }
