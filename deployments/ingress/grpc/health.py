"""gRPC: the standard health service, `grpc.health.v1.Health`, which Kubernetes and load balancers ask.

`Watch` is not implemented: an open stream would keep a replica from stopping.

Source: https://github.com/grpc/grpc/blob/master/doc/health-checking.md
"""

from __future__ import annotations

from typing import Any

from google.protobuf.message import Message
from grpc_health.v1 import health_pb2 as pb

from deployments.contract.errors import NotFound
from deployments.ingress.grpc.calls import Calls, Rpc
from deployments.ingress.service import Service
from deployments.observe.observer import Call
from deployments.protocol.services import SERVICES

# The response of `List`; None where the installed grpcio-health-checking has no such method, as beside protobuf 6.
LIST: Any = getattr(pb, "HealthListResponse", None)
# The empty name stands for all services.
KNOWN = sorted({"", *(each.full_name for each in SERVICES)})


def calls(service: Service) -> Calls:
    """The method that probes ask, and the list of everything that they may ask about."""

    def status() -> pb.HealthCheckResponse:
        return pb.HealthCheckResponse(status="SERVING" if service.is_ready() else "NOT_SERVING")

    async def check(request: pb.HealthCheckRequest, _: Call) -> Message:
        if request.service not in KNOWN:
            raise NotFound(f"there is no service {request.service!r}; there are {KNOWN}")
        return status()

    async def listed(_: Message, _call: Call) -> Message:
        found: Message = LIST(statuses=dict.fromkeys(KNOWN, status()))
        return found

    listing = {"List": Rpc(listed)} if LIST is not None else {}
    return {"Check": Rpc(check, is_open=True), **listing}
