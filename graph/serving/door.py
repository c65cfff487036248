"""The application's door: the Serve deployment that every protocol reaches, and that inline nodes run in."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

from ray import serve
from ray.serve.grpc_util import RayServegRPCContext
from ray.serve.handle import DeploymentHandle
from starlette.requests import Request
from starlette.responses import Response

from deployments.contract.answer import Classification
from deployments.contract.errors import EnsembleError, RemoteUnavailable
from deployments.contract.nodes import Node, Watched
from deployments.ingress.access import Access
from deployments.ingress.grpc.open_inference import OpenInference
from deployments.ingress.http.server import HttpServer
from deployments.ingress.ingress import Ingress
from deployments.ingress.options import from_keywords
from deployments.ingress.service import Service
from deployments.observe import exporters
from deployments.observe.metrics import EdgeMetrics, report_state
from deployments.observe.observer import Observer
from deployments.observe.stats import Stats
from deployments.observe.tracing import Tracing
from deployments.protocol import inference_pb2 as pb
from graph.edges import edge
from graph.edges.direct import DirectEdge
from graph.live import LiveSettings
from graph.plan import INGRESS, Plan
from graph.serving.replicas import Replicas

logger = logging.getLogger("ray.serve")

WARM_UP_RETRY_S = 1.0


class Door:
    """Answers every protocol."""

    def __init__(self, plan: Plan, nodes: Mapping[str, DeploymentHandle[Any] | Callable[[], Node[Any, Any]]]) -> None:
        """Compose the graph: each node is a handle, or made here."""
        inline = {name: node() for name, node in nodes.items() if not isinstance(node, DeploymentHandle)}
        handles = {name: node for name, node in nodes.items() if isinstance(node, DeploymentHandle)}
        metrics = EdgeMetrics()
        edges = {name: edge(name, handle, plan.edges, metrics) for name, handle in handles.items()}
        stats = Stats() if plan.page.enabled else None
        self._observer = Observer(Tracing(exporters.from_environment(), plan.services), stats)
        self._ingress = Ingress(plan.compose({**inline, **edges}), plan.ingress, plan.class_count, self._observer)
        self._nodes = {INGRESS: self._ingress, **inline}
        self._settings = LiveSettings(self._nodes)
        self._ready = False
        self._unready = ""
        access = None if plan.keys is None else Access(plan.keys)
        replica = serve.get_replica_context().replica_id
        service = Service(
            self._ingress,
            plan.class_count,
            lambda: self._ready,
            access,
            self._missing,
            plan.page,
            plan.strategy,
            stats,
            replica.unique_id,
            Replicas(replica.deployment_id.app_name),
        )
        self._http, self._grpc = HttpServer(service), OpenInference(service)
        direct = {name: each for name, each in edges.items() if isinstance(each, DirectEdge)}
        report_state(self._nodes, direct)
        self._warm_up = asyncio.get_event_loop().create_task(self._warm_up_until_ready())

    def _missing(self) -> dict[str, str]:
        return {"members": self._unready} if self._unready else dict(self._ingress.missing)

    async def _warm_up_until_ready(self) -> None:
        """Send images until every member has answered, and again whenever a remote one has been missed."""
        while True:
            if not self._ready or RemoteUnavailable.code in self._ingress.missing.values():
                try:
                    self._ingress.missing = await self._ingress.warm_up()
                    self._ready, self._unready = True, ""
                except EnsembleError as err:
                    self._note_unready(err.message)
                except Exception:
                    logger.exception("not every member has answered yet; asking again in %s s", WARM_UP_RETRY_S)
            await asyncio.sleep(WARM_UP_RETRY_S)

    def _note_unready(self, why: str) -> None:
        """Say why it is not ready, once."""
        if not self._ready and why != self._unready:
            logger.warning("not every member has answered yet: %s; asking again every %s s", why, WARM_UP_RETRY_S)
            self._unready = why

    def reconfigure(self, user_config: dict[str, Any]) -> None:
        """Apply a changed `user_config`: the ingress' settings, and under `nodes` those of inline nodes, by name."""
        own = {name: value for name, value in user_config.items() if name != "nodes"}
        nodes = user_config.get("nodes", {})
        self._settings.apply({INGRESS: own, **(nodes if isinstance(nodes, dict) else {"nodes": nodes})})

    def check_health(self) -> None:
        """Raise if an inline node says that it can't work any more."""
        for node in self._nodes.values():
            if isinstance(node, Watched):
                node.check_health()

    def __del__(self) -> None:
        """Serve calls this when it stops the replica: the last spans go out."""
        if hasattr(self, "_observer"):
            self._observer.close()

    async def classify(self, image: bytes, *, traceparent: str | None = None, **options: Any) -> Classification:
        """Classify one encoded image; for callers with a handle.

        Args:
            image: the content of an image file.
            traceparent: a W3C `traceparent`, to continue the caller's trace.
            options: the fields of `deployments.contract.options.Options`: `top_k`, `members`, `timeout_ms`.

        Raises:
            EnsembleError: as over HTTP and gRPC.
            TypeError: the image is not bytes.
        """
        if not isinstance(image, bytes):
            raise TypeError(f"image must be bytes, the content of an image file; got {type(image).__name__}")
        headers = {} if traceparent is None else {"traceparent": traceparent}
        with self._observer.call("handle", headers, {}) as call:
            [outcome] = await self._ingress.classify([image], from_keywords(options), trace=call.trace)
            if isinstance(outcome, EnsembleError):
                raise outcome
            return outcome.classification

    async def __call__(self, request: Request) -> Response:
        """HTTP."""
        return await self._http(request)

    async def ServerLive(self, request: pb.ServerLiveRequest) -> pb.ServerLiveResponse:  # noqa: N802
        """The protocol's call of that name."""
        return self._grpc.server_live()

    async def ServerReady(self, request: pb.ServerReadyRequest) -> pb.ServerReadyResponse:  # noqa: N802
        """The protocol's call of that name."""
        return self._grpc.server_ready()

    async def ServerMetadata(  # noqa: N802
        self, request: pb.ServerMetadataRequest, grpc_context: RayServegRPCContext
    ) -> pb.ServerMetadataResponse:
        """The protocol's call of that name."""
        return self._grpc.server_metadata(grpc_context)

    async def ModelReady(  # noqa: N802
        self, request: pb.ModelReadyRequest, grpc_context: RayServegRPCContext
    ) -> pb.ModelReadyResponse:
        """The protocol's call of that name."""
        return self._grpc.model_ready(request, grpc_context)

    async def ModelMetadata(  # noqa: N802
        self, request: pb.ModelMetadataRequest, grpc_context: RayServegRPCContext
    ) -> pb.ModelMetadataResponse:
        """The protocol's call of that name."""
        return self._grpc.model_metadata(request, grpc_context)

    async def ModelInfer(  # noqa: N802
        self, request: pb.ModelInferRequest, grpc_context: RayServegRPCContext
    ) -> pb.ModelInferResponse:
        """The protocol's call of that name."""
        return await self._grpc.model_infer(request, grpc_context)
