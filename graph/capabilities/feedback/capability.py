"""Feedback: answers are remembered until somebody says what each image truly was, and counted by who was right."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from deployments.contract.errors import UnknownRequest
from deployments.contract.item import Item
from deployments.ingress.extension import Report
from deployments.ingress.grpc.calls import Calls
from deployments.ingress.http.routes import Routes
from deployments.ingress.service import Service
from graph.capabilities.capability import Capability, Planned, Site
from graph.capabilities.feedback.figures import FeedbackStats
from graph.capabilities.feedback.grpc import GrpcFeedback
from graph.capabilities.feedback.metrics import FeedbackMetrics
from graph.capabilities.feedback.peers import Peers
from graph.capabilities.feedback.routes import HttpFeedback
from graph.capabilities.feedback.settings import FeedbackSettings
from graph.capabilities.feedback.store import FeedbackStore
from graph.edges.folder import sockets
from graph.flows.intercepted import InFlight, Interceptor

if TYPE_CHECKING:
    from graph.agreement import Agreement
    from graph.config import EnsembleConfig

NAME = "feedback"
# A request's own id, over HTTP and in gRPC's metadata.
REQUEST_IDS = ("x-request-id", "request_id")
# Beside the folders of sockets, that of the replicas of the ingress: no deployment has such a name.
LABELS = "true labels"


def planned(config: EnsembleConfig, agreed: Agreement) -> Planned | None:
    """Feedback as the section `feedback` has it; without one, what says so."""
    return NoFeedback if config.feedback is None else partial(Feedback, config.feedback, agreed.labels)


class NoFeedback(Capability):
    """Refuses true labels: a gRPC method and a handle's are there in every application."""

    def __init__(self, _: Site) -> None:
        """Set what the handle's method does."""
        self.handles = {NAME: self._refuse}

    async def _refuse(self, *_: object) -> None:
        raise UnknownRequest("no labels are taken; configure `feedback`")

    def calls(self, service: Service) -> Calls:
        """The method that refuses."""
        return GrpcFeedback(self._refuse).calls()


class Feedback(Capability):
    """Remembers answers, and takes their labels by every protocol, whichever replica has answered."""

    headers = REQUEST_IDS

    def __init__(self, settings: FeedbackSettings, labels: Sequence[str], site: Site) -> None:
        """Set how much is remembered, and the classes' names in order of index."""
        store = FeedbackStore(settings, labels, FeedbackMetrics())
        folder: Path | None = sockets(site.application, LABELS)
        self._peers = Peers(store, folder, site.replica)
        self.interceptor = Remembering(store)
        self.handles = {NAME: self._peers}
        self.reports = {NAME: Report(FeedbackStats, store.figures)}

    def routes(self, service: Service) -> Routes:
        """`POST /feedback`."""
        return HttpFeedback(service.ingress, self._peers).routes()

    def calls(self, service: Service) -> Calls:
        """`ensemble.FeedbackService`."""
        return GrpcFeedback(self._peers).calls()

    async def check_health(self) -> None:
        """Have the other replicas find this one."""
        await self._peers.listen()


class Remembering(Interceptor):
    """Remembers each answer by its request's id."""

    def __init__(self, store: FeedbackStore) -> None:
        """Set where."""
        self._store = store

    def on_answer(self, batch: InFlight, position: int, item: Item) -> None:
        """Remember what came of an image."""
        sent = batch.sent[position]
        self._store.remember(request_id(sent), sent.place, batch.records[position], sent.by.name)


def request_id(item: Item) -> str:
    """What a request is known by: its own id, or if it has none its trace's."""
    return next((item.by.headers[name] for name in REQUEST_IDS if item.by.headers.get(name)), item.trace_id)
