"""The application's door: the Serve deployment that every protocol reaches, and that inline nodes run in."""

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
from deployments.contract.rollout import no_labels
from deployments.ingress.access import Access
from deployments.ingress.grpc.server import GrpcServer, answers_grpc
from deployments.ingress.http.server import HttpServer
from deployments.ingress.ingress import Ingress
from deployments.ingress.loading import Gates, Loading
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
from graph.flows.rollout import SECTIONS
from graph.live import LiveSettings
from graph.plan import INGRESS, Plan, Whole
from graph.serving.listening import listens_on_loopback
from graph.serving.loading import Redeploying
from graph.serving.peers import Peers
from graph.serving.replicas import Replicas

logger = logging.getLogger("ray.serve")

WARM_UP_RETRY_S = 1.0
# What is loaded and unloaded, in `user_config`, and beside the nodes, of which none has such a name.
LOADING, GATES = "loading", "loading of members"
# Beside the folders of sockets, that of the shared memory that clients register, and that of the sockets by which the
# replicas of the ingress hand on true labels: no deployment has such names.
REGIONS, LABELS = "shared memory", "true labels"


@answers_grpc
class Door:
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
        stats = Stats() if plan.page.enabled else None
        self._observer = Observer(Tracing(exporters.from_environment(), plan.services), stats)
        versions = {name: offer.version for name, offer in plan.offers.items()}
        loadable = plan.loadable
        gates = None if loadable is None else Gates(set(loadable.members), loadable.spare, versions)
        placed = {**inline, **edges} if gates is None else gates.before({**inline, **edges})
        composed = plan.compose(placed)
        whole = composed if isinstance(composed, Whole) else Whole(composed)
        rollout = whole.rollout
        self._ingress = Ingress(whole.graph, plan.ingress, plan.class_count, self._observer, whole.knows)
        self._nodes = {INGRESS: self._ingress, **inline}
        self._gates = gates
        live = {} if gates is None else {GATES: gates}
        self._settings = LiveSettings({**self._nodes, **live, **(rollout.live if rollout is not None else {})})
        self._ready = False
        self._unready = ""
        access = None if plan.keys is None else Access(plan.keys)
        labels = plan.labels or tuple(map(str, range(plan.class_count)))
        members = {
            name: (MemberIngress(self._ingress, PixelRows(placed[name], offer.size, labels), len(labels)), offer)
            for name, offer in plan.offers.items()
        }
        replica = serve.get_replica_context().replica_id
        application = replica.deployment_id.app_name
        folder, beside = sockets(application, REGIONS), sockets(application, LABELS)
        loading = None
        if loadable is not None and gates is not None:
            loading = Loading(loadable.operators, gates, members, versions, Redeploying(application, loadable))
        takes_labels = rollout is not None and rollout.takes_labels
        self._peers = Peers(rollout, beside, replica.unique_id) if rollout is not None and takes_labels else None
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
            Replicas(application),
            labels,
            members,
            Regions(folder, lambda: self._ingress.settings.shared_memory_prefix, private),
            rollout.headers if rollout is not None else (),
            rollout.told if rollout is not None else None,
            self._peers,
            loading=loading,
            versions=versions,
            is_local=listens_on_loopback(),
        )
        self._http, self.grpc = HttpServer(service), GrpcServer(service)
        direct = {name: each for name, each in edges.items() if isinstance(each, DirectEdge)}
        report_state(self._nodes, direct)
        self._warm_up = asyncio.get_event_loop().create_task(self._warm_up_until_ready())

    def _missing(self) -> dict[str, str]:
        if self._unready:
            return {"members": self._unready}
        # What the last image was answered without may have changed meanwhile.
        missing = {name: code for name, code in self._ingress.missing.items() if code != Unloaded.code}
        return missing | dict.fromkeys(self._gates.settings.unloaded if self._gates is not None else (), Unloaded.code)

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
        """Apply a changed `user_config`: the ingress' settings, under `nodes` those of inline nodes, by name.

        Under `canaries` and `shadows` are those of what is tried, by the member's name, and under `loading` what is
        loaded and unloaded.
        """
        own = dict(user_config)
        changes: dict[str, Any] = {GATES: own.pop(LOADING)} if LOADING in own else {}
        for section in ("nodes", *SECTIONS):
            given = own.pop(section, {})
            prefix = "" if section == "nodes" else f"{section}."
            named = {f"{prefix}{name}": change for name, change in given.items()} if isinstance(given, dict) else None
            changes |= {section: given} if named is None else named
        self._settings.apply({INGRESS: own, **changes})

    async def check_health(self) -> None:
        """Raise if an inline node says that it can't work any more."""
        if self._peers is not None:
            await self._peers.listen()
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
        if self._peers is None:
            raise no_labels()
        await self._peers(request_id, label, index, key)

    async def __call__(self, request: Request) -> Response:
        """HTTP."""
        return await self._http(request)
