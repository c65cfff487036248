"""System shared memory as a protocol of the server: paths and methods that register regions."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import msgspec
from google.protobuf.message import Message
from msgspec.structs import asdict
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from deployments.contract.errors import NotFound
from deployments.contract.sections import Section
from deployments.ingress.error_style import AS_TEXT
from deployments.ingress.http import bodies
from deployments.ingress.ingress import Ingress
from deployments.ingress.open_inference.grpc import SERVICE
from deployments.ingress.protocol import Protocol, Service
from deployments.ingress.routes import OF_ARRIVING, OF_KEYS, Calls, Handler, Route, Routes, Rpc, encoded
from deployments.observe.observer import Call
from deployments.rpc.listener import sockets
from ensemble_interop.shared_memory.regions import Region, Regions
from ensemble_serving.protocol import inference_pb2 as pb

PATH = "/v2/systemsharedmemory"
REGION_PATH = PATH + "/region/{region}"
MOST_BYTES = 64 * 1024
# Beside the folders of deployments' sockets: no deployment has such a name.
FOLDER = "shared memory"


class SharedMemorySection(Section):
    """The field of `ingress`."""

    at: ClassVar[str] = "ingress"

    shared_memory_prefix: str | None = Field(
        None,
        pattern=r"^/?[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}$",
        description="prefix of the shared memory objects that clients may use; default: none",
    )


class SharedMemory(Protocol):
    """Lets clients of this machine keep tensors in shared memory where `ingress.shared_memory_prefix` is set."""

    sections = (SharedMemorySection,)

    def routes(self, service: Service) -> Routes:
        """Return the paths that register regions."""
        return _routes(service.ingress, self.tensor_store(service))

    def calls(self, service: Service) -> Calls:
        """Return the methods that register regions."""
        return _calls(self.tensor_store(service))

    def announces(self, service: Service) -> Sequence[str]:
        """Return the extension's name while it is on."""
        return ["system_shared_memory"] if self.tensor_store(service).is_on else []

    def tensor_store(self, service: Service) -> Regions:
        """Return the regions that clients of this machine have registered, with whichever replica."""
        folder, ingress = partial(sockets, service.application, FOLDER), service.ingress
        return Regions(folder, lambda: ingress.settings.of(SharedMemorySection).shared_memory_prefix)


class Registration(msgspec.Struct):
    """A part of an object in /dev/shm."""

    key: str
    byte_size: int
    offset: int = 0


def _routes(ingress: Ingress, regions: Regions) -> Routes:
    """Return the extension's paths, each for one region and for all; the ingress admits the requests."""

    async def register(request: Request, call: Call) -> Response:
        body, _ = await bodies.document(request, ingress.admission, call.caller, bodies.Limit(MOST_BYTES))
        asked = bodies.parsed(body, Registration)
        regions.register(Region(request.path_params["region"], asked.key, asked.offset, asked.byte_size))
        return encoded({})

    async def status(request: Request, _: Call) -> Response:
        return encoded(regions.listed(request.path_params.get("region", "")))

    async def unregister(request: Request, _: Call) -> Response:
        regions.unregister(request.path_params.get("region", ""))
        return encoded({})

    found = {f"{REGION_PATH}/register": _route("POST", register, "register a region", body=Registration)}
    for path, which in ((REGION_PATH, "a region"), (PATH, "every region")):
        found[f"{path}/status"] = _route("GET", status, f"report {which}", list[Region])
        found[f"{path}/unregister"] = _route("POST", unregister, f"unregister {which}")
    return {path: replace(route, is_on=lambda: regions.is_on) for path, route in found.items()}


def _route(method: str, handler: Handler, summary: str, answer: Any = dict[str, Any], body: Any = None) -> Route:
    title = f"Open Inference Protocol, system shared memory: {summary}"
    errors = (*(OF_ARRIVING if body else OF_KEYS), NotFound)
    return Route(method, handler, title, (answer,), errors, AS_TEXT, body={"application/json": body} if body else {})


def _calls(regions: Regions) -> Calls:

    async def status(request: pb.SystemSharedMemoryStatusRequest, _: Call) -> Message:
        made = pb.SystemSharedMemoryStatusResponse.RegionStatus
        listed = {region.name: made(**asdict(region)) for region in regions.listed(request.name)}
        return pb.SystemSharedMemoryStatusResponse(regions=listed)

    async def register(request: pb.SystemSharedMemoryRegisterRequest, _: Call) -> Message:
        regions.register(Region(request.name, request.key, request.offset, request.byte_size))
        return pb.SystemSharedMemoryRegisterResponse()

    async def unregister(request: pb.SystemSharedMemoryUnregisterRequest, _: Call) -> Message:
        regions.unregister(request.name)
        return pb.SystemSharedMemoryUnregisterResponse()

    found = {
        "SystemSharedMemoryStatus": Rpc(status),
        "SystemSharedMemoryRegister": Rpc(register),
        "SystemSharedMemoryUnregister": Rpc(unregister),
    }
    return {f"{SERVICE.full_name}/{name}": rpc for name, rpc in found.items()}
