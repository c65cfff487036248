"""Feedback: answers are remembered until their true labels arrive, which show how often each prediction is right."""

from __future__ import annotations

from collections.abc import Sequence

from deployments.contract.caller import REQUEST_IDS
from deployments.contract.item import TRACE_ID
from deployments.ingress.protocol import Report, Service
from deployments.ingress.routes import Routes
from deployments.observe.metrics import TaggedCounter
from deployments.rpc.listener import sockets
from ensemble_rollout.feedback.labels import SERVICE, TakesLabel, refuse, routes
from ensemble_rollout.feedback.peers import Peers
from ensemble_rollout.feedback.store import FeedbackCounters, FeedbackSettings, FeedbackStats, FeedbackStore
from ensemble_rollout.record import answered
from graph.features.feature import Feature, Site
from graph.pipeline.pipeline import Answered, InFlight, Interceptor
from graph.schema import EnsembleConfig
from graph.signature import EnsembleSignature

NAME = "feedback"
# The folder of the sockets of the ingress' replicas, among those of deployments, of which none has such a name.
FOLDER = "true labels"


def counters() -> FeedbackCounters:
    """Make what the ingress counts of true labels."""
    return FeedbackCounters(
        TaggedCounter(
            "ensemble_feedback_labels", "True labels that were sent: accepted, or the code of the error.", "result"
        ),
        TaggedCounter(
            "ensemble_feedback_answers",
            "Images with a true label, by whether the ensemble, a member, a version, an exit or a shadow was right.",
            *("kind", "name", "version", "right"),
        ),
    )


class Feedback(Feature):
    """Remembers answers, and takes their labels by every protocol, whichever replica gave the answer.

    Without the section `feedback` it refuses labels: every application has the gRPC method and the handle's method.
    """

    # After the canary, whose draw it remembers.
    order = 60
    of_any_shape = True
    Settings = FeedbackSettings

    def __init__(self, _: EnsembleConfig, agreed: EnsembleSignature, site: Site) -> None:
        self._peers: Peers | None = None
        self._take: TakesLabel = refuse
        if isinstance(site.settings, FeedbackSettings):
            store = FeedbackStore(site.settings, agreed.labels, counters())
            self._take = self._peers = Peers(store, sockets(site.application, FOLDER), site.replica)
            self.interceptor = Remembering(store)
            self.headers = REQUEST_IDS
            self.reports = {NAME: Report(FeedbackStats, store.figures)}
        else:
            self.not_serving = (SERVICE.full_name,)
        self.handles = {NAME: self.feedback}

    @classmethod
    def wanted(cls, _: EnsembleConfig) -> bool:
        """Take part in every application."""
        return True

    async def feedback(self, request_id: str, label: str | int, index: int = 0, key: str = "") -> None:
        """Report the true label of an image; for callers with a handle.

        Args:
            request_id: the request's id; for an answer by handle `x-request-id` in `headers`, or else its `trace_id`.
            label: the class' name or its index.
            index: the image's position in its request.
            key: the name of the request's API key; empty for a request by handle.

        Raises:
            UnknownLabel: the label is not a class.
            UnknownRequest: the server does not keep the answer, or no longer keeps it.
            AlreadyLabelled: the image has a label.
        """
        await self._take(request_id, label, index, key)

    def routes(self, service: Service) -> Routes:
        """Serve `POST /feedback`."""
        return {} if self._peers is None else routes(service.ingress, self._peers)

    async def check_health(self) -> None:
        """Let the other replicas find this one."""
        if self._peers is not None:
            await self._peers.listen()


class Remembering(Interceptor):
    """Remembers each answer by its request's id."""

    def __init__(self, store: FeedbackStore) -> None:
        self._store = store

    def on_part(self, batch: InFlight, positions: Sequence[int], part: Answered) -> Answered:
        """Remember the predictions for each image."""
        for position, _, record in answered(batch, positions, part):
            sent = batch.sent.items[position]
            request = sent.caller.request_id or sent.trace_parent[TRACE_ID]
            self._store.remember(request, sent.position, record, sent.caller.name)
        return part
