"""gRPC: loading and unloading members, an extension of the Open Inference Protocol."""

from __future__ import annotations

from google.protobuf.message import Message

from deployments.contract.errors import ImageTooLarge
from deployments.ingress.grpc.calls import Calls, Rpc
from deployments.ingress.grpc.open_inference import parameters
from deployments.observe.observer import Call
from deployments.protocol import inference_pb2 as pb
from graph.capabilities.loading.loading import Loading
from graph.capabilities.loading.parameters import MOST_BYTES, check_unload, version_to_load
from graph.capabilities.loading.routes import Permit


class GrpcRepository:
    """Answers the extension's calls."""

    def __init__(self, permit: Permit) -> None:
        """Set what loads members."""
        self._permit = permit

    def calls(self) -> Calls:
        """Its methods."""
        return {
            "RepositoryModelLoad": Rpc(self._load, pb.RepositoryModelLoadResponse),
            "RepositoryModelUnload": Rpc(self._unload, pb.RepositoryModelUnloadResponse),
        }

    async def _load(self, request: pb.RepositoryModelLoadRequest, call: Call) -> Message:
        loading = self._permitted(request, call)
        await loading.load(request.model_name, version_to_load(parameters(request.parameters)))
        return pb.RepositoryModelLoadResponse()

    async def _unload(self, request: pb.RepositoryModelUnloadRequest, call: Call) -> Message:
        loading = self._permitted(request, call)
        check_unload(parameters(request.parameters))
        await loading.unload(request.model_name)
        return pb.RepositoryModelUnloadResponse()

    def _permitted(self, request: Message, call: Call) -> Loading:
        loading = self._permit(call.caller.name)
        if (size := request.ByteSize()) > MOST_BYTES:
            raise ImageTooLarge(f"the request has {size} bytes; at most {MOST_BYTES} are accepted")
        return loading
