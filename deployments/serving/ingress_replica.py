"""The ingress: the Serve deployment that every protocol reaches, and that inline nodes run in."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from ray import serve
from ray.serve.handle import DeploymentHandle
from starlette.requests import Request
from starlette.responses import Response

from deployments.contract import clock
from deployments.contract.answer import Answer, Classification
from deployments.contract.batch import Batch
from deployments.contract.caller import ANYONE, Caller
from deployments.contract.errors import EnsembleError, RemoteUnavailable
from deployments.contract.hosts import LOOPBACK, is_loopback
from deployments.contract.member import OPERATION
from deployments.contract.names import INGRESS
from deployments.contract.nodes import HealthChecked
from deployments.ingress.access import Access
from deployments.ingress.grpc.server import GrpcServer, by_serve
from deployments.ingress.http.server import HttpServer
from deployments.ingress.ingress import LEFT_OUT, Ingress
from deployments.ingress.listeners.front import Front, folder, services
from deployments.ingress.listeners.grpc import GrpcListener
from deployments.ingress.listeners.http import HttpListener
from deployments.ingress.options import from_keywords
from deployments.ingress.protocol import Service, resolve
from deployments.observe import exporters, output
from deployments.observe.metrics import StateReport, report_counters, report_periodically
from deployments.observe.observer import Observer, Watcher
from deployments.observe.tracing import Tracing
from deployments.ray_internals.serve_client import http_host
from deployments.reconfigure import LiveSettings
from deployments.rpc.direct import DirectEdge
from deployments.rpc.edge import by_handle, edges
from deployments.rpc.stand_in import Factory
from deployments.serving.node_replica import take_cores
from deployments.serving.spec import BuiltGraph, IngressSpec

logger = logging.getLogger("ray.serve")

WARM_UP_RETRY_S = 1.0
# The longest time that a new replica waits for its members before it takes requests, which a quorum may answer.
MEMBERS_S = 10.0


class VersionWatcher(Watcher):
    """Notes the version by which each member answers, which may be another one than at the start."""

    def __init__(self, versions: dict[str, str]) -> None:
        self._versions = versions
        # What it has noted, and since when others have noted a newer one: an earlier step is of an older version.
        self._noted, self._since_ns = dict(versions), dict.fromkeys(versions, 0)

    def batch(self, batch: Batch[Sequence[Answer]], queue_wait_s: float) -> None:
        """Note the versions in the steps of an image; a version on trial has steps of another name."""
        for step in batch.items[-1].steps:
            version = step.note.attributes.get("ensemble.model.version")
            if version is None or (name := step.note.node.removeprefix(OPERATION)) not in self._versions:
                continue
            if self._versions[name] != self._noted[name]:
                self._noted[name], self._since_ns[name] = self._versions[name], clock.now_ns()
            if step.note.start_ns >= self._since_ns[name]:
                self._versions[name] = self._noted[name] = str(version)


class IngressReplica:
    """Answers every protocol."""

    def __init__(
        self,
        spec: IngressSpec,
        nodes: Mapping[str, DeploymentHandle[Any] | Factory],
        stand_ins: Mapping[str, tuple[Factory, Factory]],
    ) -> None:
        """Compose the graph: each node is a handle, perhaps with a stand-in that is made here, or made here."""
        take_cores(spec.pinning)
        inline = {name: node() for name, node in nodes.items() if not isinstance(node, DeploymentHandle)}
        handles = {name: node for name, node in nodes.items() if isinstance(node, DeploymentHandle)}
        replica = serve.get_replica_context().replica_id
        application = replica.deployment_id.app_name
        called = edges(application, handles, stand_ins) if spec.edges == "direct" else by_handle(handles)
        versions = {name: info.version for name, info in spec.members.items()}
        built = spec.build({**inline, **called}, application, replica.unique_id, versions)
        exporter = exporters.from_environment()
        self._observer = Observer(None if exporter is None else Tracing(exporter, spec.services))
        self._observer.watch(VersionWatcher(versions))
        self._ingress = Ingress.of_images(built.graph, spec.settings, len(spec.labels), self._observer)
        self._nodes = {INGRESS: self._ingress, **inline}
        self._ready, self._is_new, self._unready, self._by_handle = asyncio.Event(), True, "", 0
        self._service = self._serve(spec, built, application, versions)
        self._sections = {"nodes": inline, **self._service.live}
        self._settings = LiveSettings({INGRESS: self._ingress, **self._sections})
        self._http, grpc = HttpServer(self._service), GrpcServer(self._service)
        # Serve's proxy and callers with a handle call these by their names.
        for name, method in {**by_serve(self._service.protocols, grpc), **self._service.handles}.items():
            setattr(self, name, method)
        self._front = self._listen(spec, grpc, application)
        direct = {name: each for name, each in called.items() if isinstance(each, DirectEdge)}
        report_periodically(StateReport(self._nodes, direct), "metrics")
        report_counters()
        report_periodically(output.keep_small, "standard output")
        self._warm_up = asyncio.get_event_loop().create_task(self._warm_up_until_ready())

    def _serve(self, spec: IngressSpec, built: BuiltGraph, application: str, versions: dict[str, str]) -> Service:
        """Make what the protocols share."""
        return Service(
            self._ingress,
            spec.labels,
            self._ready.is_set,
            access=None if spec.access.keys is None else Access(spec.access.keys),
            missing=self._missing,
            members={
                name: (self._ingress.of_pixels(graph), spec.members[name]) for name, graph in built.members.items()
            },
            protocols=tuple(protocol() for protocol in resolve(spec.protocols)),
            application=application,
            features=built.features,
            left_out=built.left_out,
            versions=versions,
            # An unknown address counts as loopback: the names of other hosts are refused then, and not trusted.
            is_local=is_loopback(http_host() or LOOPBACK),
            grpc_services=[each.full_name for each in services(spec.protocols)],
            max_image_bytes=spec.max_image_bytes,
        )

    def _listen(self, spec: IngressSpec, grpc: GrpcServer, application: str) -> Front | None:
        """Make the sockets behind HAProxy; None if Serve's proxy calls this replica."""
        if (sockets := folder(application)) is None:
            return None
        limit = lambda: self._ingress.settings.max_request_bytes  # noqa: E731
        grpc_listener = GrpcListener(grpc, limit, services(spec.protocols))
        return Front(sockets, HttpListener(self._http), grpc_listener)

    def _missing(self) -> dict[str, str]:
        if self._unready:
            return {"members": self._unready}
        # What the last image was answered without may have changed meanwhile.
        left_out = {name: error.code for name, error in self._service.left_out.items()}
        missing = self._ingress.execution.missing.items()
        return {name: code for name, code in missing if code != LEFT_OUT} | left_out

    async def _warm_up_until_ready(self) -> None:
        """Send images until every member has answered, and again whenever a remote one has been missed."""
        while True:
            if not self._ready.is_set() or RemoteUnavailable.code in self._ingress.execution.missing.values():
                try:
                    await self._ingress.warm_up()
                    self._ready.set()
                    self._unready = ""
                except EnsembleError as err:
                    if not self._ready.is_set() and err.message != self._unready:
                        self._unready = err.message
                        logger.warning("not every member has answered yet: %s; asking again", err.message)
                except Exception:
                    logger.exception("not every member has answered yet; asking again in %s s", WARM_UP_RETRY_S)
            await asyncio.sleep(WARM_UP_RETRY_S)

    def reconfigure(self, user_config: dict[str, Any]) -> None:
        """Apply a changed `user_config`: the ingress' settings, and the sections of nodes and of features."""
        sections = {name: change for name, change in user_config.items() if name in self._sections}
        own = {name: change for name, change in user_config.items() if name not in self._sections}
        self._settings.apply({INGRESS: own, **sections})

    def record_autoscaling_stats(self) -> dict[str, float]:
        """Report the requests in progress, by every protocol, because Serve counts only its own."""
        if self._front is None:
            return self._ingress.autoscaling_stats.stats()
        return {"running_requests": self._front.in_flight + self._by_handle, **self._ingress.autoscaling_stats.stats()}

    async def check_health(self) -> None:
        """Raise if an inline node can't work any more."""
        # Serve asks for the first time when the replica is complete, its `user_config` applied. No request comes yet.
        if self._is_new:
            self._is_new = False
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ready.wait(), MEMBERS_S)
        if self._front is not None:
            await self._front.keep_open()
        for node in self._nodes.values():
            if isinstance(node, HealthChecked):
                node.check_health()

    async def __del__(self) -> None:
        """Serve awaits this when it stops the replica: it answers admitted requests, and exports the last spans."""
        if (front := getattr(self, "_front", None)) is not None:
            await front.close()
        if hasattr(self, "_observer"):
            self._observer.close()

    async def classify(
        self,
        image: bytes,
        *,
        traceparent: str | None = None,
        headers: Mapping[str, str] | None = None,
        **options: Any,
    ) -> Classification:
        """Classify one encoded image; for callers with a handle.

        Args:
            image: the content of an image file.
            traceparent: a W3C `traceparent`, to continue the caller's trace.
            headers: the headers that a request over HTTP would have, such as a header that a feature reads.
            options: the parameters of `POST /classify`: `top_k`, `members`, `timeout_ms`, `quality`, `cache`, ...

        Raises:
            EnsembleError: the error, by its code.
            TypeError: the image is not bytes, or a header is not text.
        """
        if not isinstance(image, bytes):
            raise TypeError(f"image must be bytes, the content of an image file; got {type(image).__name__}")
        if not all(isinstance(text, str) for pair in (headers or {}).items() for text in pair):
            raise TypeError(f"headers must be text by name; got {headers!r:.200}")
        parent = {} if traceparent is None else {"traceparent": traceparent}
        given = ANYONE if not headers else Caller(headers={name.lower(): value for name, value in headers.items()})
        self._by_handle += 1
        try:
            with self._observer.call("handle", parent, {}) as call:
                [outcome] = await self._ingress.classify([image], from_keywords(options), trace=call.trace, by=given)
                if isinstance(outcome, EnsembleError):
                    raise outcome
                return outcome.classification
        finally:
            self._by_handle -= 1

    async def __call__(self, request: Request) -> Response:
        """Answer a request by HTTP."""
        return await self._http(request)
