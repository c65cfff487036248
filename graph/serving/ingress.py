"""The ingress: the Serve deployment that every protocol reaches, and that inline nodes run in."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

from ray import serve
from ray.serve.handle import DeploymentHandle
from starlette.requests import Request
from starlette.responses import Response

from deployments.contract.answer import Classification
from deployments.contract.caller import ANYONE, Caller
from deployments.contract.errors import EnsembleError, RemoteUnavailable, Unloaded
from deployments.contract.nodes import Node, Watched
from deployments.ingress.access import Access
from deployments.ingress.grpc.server import GrpcServer, answers_grpc
from deployments.ingress.http.server import HttpServer
from deployments.ingress.ingress import Ingress
from deployments.ingress.member import MemberIngress, PixelRows
from deployments.ingress.options import from_keywords
from deployments.ingress.service import Service
from deployments.ingress.shared_memory import Regions
from deployments.observe import exporters
from deployments.observe.metrics import EdgeMetrics, report_state
from deployments.observe.observer import Observer
from deployments.observe.stats import Stats
from deployments.observe.tracing import Tracing
from graph.edges import edge
from graph.edges.direct import DirectEdge
from graph.edges.folder import private, sockets
from graph.live import LiveSettings
from graph.names import INGRESS
from graph.plan import Plan
from graph.serving.joined import join
from graph.serving.listening import listens_on_loopback
from graph.serving.replicas import Replicas

logger = logging.getLogger("ray.serve")

WARM_UP_RETRY_S = 1.0
# Beside the folders of sockets, that of the shared memory that clients register: no deployment has such a name.
REGIONS = "shared memory"


@answers_grpc
class IngressReplica:
    """Answers every protocol.

    Attributes:
        grpc: what every gRPC call goes to, whatever its service.
    """

    def __init__(self, plan: Plan, nodes: Mapping[str, DeploymentHandle[Any] | Callable[[], Node[Any, Any]]]) -> None:
        """Compose the graph: each node is a handle, or made here."""
        inline = {name: node() for name, node in nodes.items() if not isinstance(node, DeploymentHandle)}
        handles = {name: node for name, node in nodes.items() if isinstance(node, DeploymentHandle)}
        metrics = EdgeMetrics()
        edges = {name: edge(name, handle, plan.edges, metrics) for name, handle in handles.items()}
        replica = serve.get_replica_context().replica_id
        application = replica.deployment_id.app_name
        versions = {name: offer.version for name, offer in plan.offers.items()}
        joined = join(plan, {**inline, **edges}, application, replica.unique_id, versions)
        self._capabilities = joined.capabilities
        stats = Stats() if plan.page.enabled else None
        self._observer = Observer(Tracing(exporters.from_environment(), plan.services), stats)
        self._ingress = Ingress(joined.graph, plan.ingress, plan.class_count, self._observer, joined.knows)
        self._nodes = {INGRESS: self._ingress, **inline}
        self._settings = LiveSettings({**self._nodes, **joined.live})
        self._ready = False
        self._unready = ""
        labels = plan.labels or tuple(map(str, range(plan.class_count)))
        service = Service(
            self._ingress,
            plan.class_count,
            lambda: self._ready,
            None if plan.keys is None else Access(plan.keys),
            self._missing,
            plan.page,
            plan.strategy,
            stats,
            replica.unique_id,
            Replicas(application),
            labels,
            {
                name: (self._of_member(PixelRows(joined.nodes[name], offer.size, labels), len(labels)), offer)
                for name, offer in plan.offers.items()
            },
            Regions(sockets(application, REGIONS), lambda: self._ingress.settings.shared_memory_prefix, private),
            self._capabilities,
            versions,
            listens_on_loopback(),
        )
        self._service = service
        self._http, self.grpc = HttpServer(service), GrpcServer(service)
        report_state(self._nodes, {name: each for name, each in edges.items() if isinstance(each, DirectEdge)})
        self._warm_up = asyncio.get_event_loop().create_task(self._warm_up_until_ready())

    def _of_member(self, rows: PixelRows, classes: int) -> MemberIngress:
        return MemberIngress(self._ingress, rows, classes)

    def _missing(self) -> dict[str, str]:
        if self._unready:
            return {"members": self._unready}
        # What the last image was answered without may have changed meanwhile.
        missing = {name: code for name, code in self._ingress.missing.items() if code != Unloaded.code}
        return missing | dict.fromkeys(self._service.unloaded, Unloaded.code)

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
        """Apply a changed `user_config`: the ingress' settings, and the sections of others.

        Under `nodes` are the settings of inline nodes, by name; capabilities have sections of their own.
        """
        own = dict(user_config)
        changes: dict[str, Any] = {}
        sections = {section: name for each in self._capabilities for section, name in each.sections.items()}
        for section, name in {"nodes": "", **sections}.items():
            if section in own:
                changes |= _named(section, name, own.pop(section))
        self._settings.apply({INGRESS: own, **changes})

    async def check_health(self) -> None:
        """Raise if an inline node says that it can't work any more."""
        for capability in self._capabilities:
            await capability.check_health()
        for node in self._nodes.values():
            if isinstance(node, Watched):
                node.check_health()

    def __del__(self) -> None:
        """Serve calls this when it stops the replica: the last spans go out."""
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
            headers: what a request over HTTP would have as headers, for a canary that goes by one.
            options: the fields of `deployments.contract.options.Options`: `top_k`, `members`, `timeout_ms`,
                `quality`, `cache`.

        Raises:
            EnsembleError: as over HTTP and gRPC.
            TypeError: the image is not bytes.
        """
        if not isinstance(image, bytes):
            raise TypeError(f"image must be bytes, the content of an image file; got {type(image).__name__}")
        parent = {} if traceparent is None else {"traceparent": traceparent}
        given = ANYONE if not headers else Caller(headers={name.lower(): value for name, value in headers.items()})
        with self._observer.call("handle", parent, {}) as call:
            [outcome] = await self._ingress.classify([image], from_keywords(options), trace=call.trace, by=given)
            if isinstance(outcome, EnsembleError):
                raise outcome
            return outcome.classification

    async def feedback(self, request_id: str, label: str | int, index: int = 0, key: str = "") -> None:
        """Tell what an image truly is; for callers with a handle.

        Args:
            request_id: of an answer by handle its `trace_id`, if `classify` was given no `x-request-id` in `headers`.
            label: the class' name, or its index.
            index: the image's, in its request.
            key: the name of the API key that the request showed, over HTTP or gRPC; by handle none is shown.

        Raises:
            UnknownLabel: it is no class.
            UnknownRequest: the answer is not, or no longer, remembered.
            AlreadyLabelled: it has a label.
        """
        [take] = [each.handles["feedback"] for each in self._capabilities if "feedback" in each.handles]
        await take(request_id, label, index, key)

    async def __call__(self, request: Request) -> Response:
        """HTTP."""
        return await self._http(request)


def _named(section: str, name: str, given: Any) -> dict[str, Any]:
    """The changes of a section of `user_config`, by what their settings are called."""
    if name and not name.endswith("."):
        return {name: given}
    # What is no mapping is refused by the name of the section.
    return {f"{name}{each}": change for each, change in given.items()} if isinstance(given, dict) else {section: given}
