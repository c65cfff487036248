"""gRPC: the standard health service, `grpc.health.v1.Health`, which Kubernetes and load balancers ask.

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

# Its stubs do not know of it yet.
LIST: Any = getattr(pb, "HealthListResponse")  # noqa: B009


class Health:
    """Answers `Check` and `List`. `Watch` is not implemented: an open stream would keep a replica from stopping."""

    def __init__(self, service: Service) -> None:
        """Set what is asked about; the empty name stands for all of it."""
        self._service = service
        self._known = {"", *(each.full_name for each in SERVICES)}

    def calls(self) -> Calls:
        """What probes ask, and the list of all that they may ask about."""
        return {
            "Check": Rpc(self._check, pb.HealthCheckResponse, is_open=True),
            "List": Rpc(self._list, LIST),
        }

    async def _check(self, request: pb.HealthCheckRequest, _: Call) -> Message:
        if request.service not in self._known:
            raise NotFound(f"there is no service {request.service!r}; there are {sorted(self._known)}")
        return self._status()

    async def _list(self, _: Message, _call: Call) -> Message:
        listed: Message = LIST(statuses=dict.fromkeys(self._known, self._status()))
        return listed

    def _status(self) -> pb.HealthCheckResponse:
        return pb.HealthCheckResponse(status="SERVING" if self._service.is_ready() else "NOT_SERVING")
