"""gRPC: the standard health service, `grpc.health.v1.Health`, which Kubernetes and load balancers ask.

`Watch` streams the status at once and at each change. A replica that stops ends its streams; clients then call again.

Source: https://github.com/grpc/grpc/blob/master/doc/health-checking.md
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from google.protobuf.message import Message
from grpc_health.v1 import health_pb2 as pb

from deployments.contract.errors import NotFound
from deployments.ingress.options import MOST_QUOTED
from deployments.ingress.protocol import Protocol, Service
from deployments.ingress.routes import Calls, Rpc
from deployments.observe.observer import Call

# The response of `List`; None where the installed grpcio-health-checking has no such method, as beside protobuf 6.
LIST: Any = getattr(pb, "HealthListResponse", None)
# How soon `Watch` sees a change.
LOOK_EVERY_S = 0.5
SERVICE: Any = pb.DESCRIPTOR.services_by_name["Health"]


class Health(Protocol):
    """Answers probes, for each service."""

    services = (SERVICE,)

    def calls(self, service: Service) -> Calls:
        """Return the methods that probes call, and the list of the names that they may ask about."""
        # The empty name stands for all services.
        known = sorted({"", *service.grpc_services})
        off = service.not_serving

        def status(name: str) -> pb.HealthCheckResponse:
            return pb.HealthCheckResponse(status="SERVING" if service.is_ready() and name not in off else "NOT_SERVING")

        async def check(request: pb.HealthCheckRequest, _: Call) -> Message:
            if request.service not in known:
                raise NotFound(f"there is no service {request.service[:MOST_QUOTED]!r}; there are {known}")
            return status(request.service)

        async def listed(_: Message, _call: Call) -> Message:
            found: Message = LIST(statuses={name: status(name) for name in known})
            return found

        async def statuses(name: str) -> AsyncIterator[Message]:
            last = None
            while True:
                # https://github.com/grpc/grpc/blob/master/doc/health-checking.md: an unknown service may come later.
                now = status(name) if name in known else pb.HealthCheckResponse(status="SERVICE_UNKNOWN")
                if now != last:
                    yield now
                last = now
                await asyncio.sleep(LOOK_EVERY_S)

        async def watch(request: pb.HealthCheckRequest, _: Call) -> AsyncIterator[Message]:
            return statuses(request.service)

        listing = {f"{SERVICE.full_name}/List": Rpc(listed)} if LIST is not None else {}
        watching = {f"{SERVICE.full_name}/Watch": Rpc(watch, is_open=True)}
        return {f"{SERVICE.full_name}/Check": Rpc(check, is_open=True), **watching, **listing}
