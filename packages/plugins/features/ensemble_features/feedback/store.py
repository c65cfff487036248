"""Remembers answers until their true labels arrive, and counts which predictions were right."""

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Annotated

import msgspec
from msgspec import Meta
from pydantic import Field

from deployments.contract.caller import MAX_ID
from deployments.contract.counting import TaggedCounter
from deployments.contract.errors import AlreadyLabelled, EnsembleError, UnknownLabel, UnknownRequest
from deployments.contract.item import TRACE_ID
from deployments.contract.sections import Section
from deployments.pipeline.pipeline import Answered, InFlight, Interceptor
from ensemble_features.proportion import Proportion, proportion
from ensemble_features.record import ENSEMBLE, Record, answered

# Characters of what a caller sent that an error quotes.
MAX_QUOTED = 40


class FeedbackSettings(Section):
    """How many predictions are kept, and for how long. Images are not kept."""

    max_requests: int = Field(
        10_000, ge=1, le=10_000_000, description="images whose predictions are kept; API keys share them"
    )
    ttl_s: float = Field(3600.0, gt=0, le=2_592_000, allow_inf_nan=False, description="how long they are kept, seconds")


class FeedbackStats(msgspec.Struct, frozen=True):
    """True labels since the start of the ingress replica, and how often each prediction was right."""

    remembered: Annotated[int, Meta(description="answers whose true label is still accepted")]
    labels: Annotated[dict[str, int], Meta(description="labels that were sent: `accepted`, or the error's code")]
    ensemble: Proportion
    members: dict[str, Proportion]
    versions: Annotated[dict[str, dict[str, Proportion]], Meta(description="of members that have a canary")]
    exits: Annotated[dict[str, Proportion], Meta(description="by the last member that a cascade called")]
    shadows: dict[str, Proportion]


class FeedbackStore(Interceptor):
    """Remembers answers by their requests' ids, and compares their predictions with true labels."""

    def __init__(
        self, settings: FeedbackSettings, labels: Sequence[str], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Set how much is remembered, the classes' names in order of index, and a clock."""
        self._settings, self._clock = settings, clock
        self._sent = TaggedCounter(
            "ensemble_feedback_labels", "True labels that were sent: accepted, or the code of the error.", "result"
        )
        self._judged = TaggedCounter(
            "ensemble_feedback_answers",
            "Images with a true label, by whether the ensemble, a member, a version, an exit or a shadow was right.",
            *("kind", "name", "version", "right"),
        )
        self._labels = {label: index for index, label in enumerate(labels)}
        # By the name of the API key, and by the request's id and the image's position: when to forget, and the record.
        self._answers: dict[str, OrderedDict[tuple[str, int], tuple[float, Record]]] = {}

    def on_part(self, batch: InFlight, positions: Sequence[int], part: Answered) -> Answered:
        """Remember the predictions for each image."""
        for position, _, record in answered(batch, positions, part):
            sent = batch.sent.items[position]
            request = sent.caller.request_id or sent.trace_parent[TRACE_ID]
            self.remember(request, sent.position, record, sent.caller.name)
        return part

    def remember(self, request: str, place: int, record: Record, key: str = "") -> None:
        """Remember an answer by the name of its API key, its request's id, and the image's position in the request.

        Beyond `max_requests` the oldest answer of the key that has the most is forgotten, so that no key has more than
        its share while others want theirs. Requests of different keys share no ids.
        """
        if len(request) > MAX_ID:
            return
        self._forget()
        own = self._answers.setdefault(key, OrderedDict())
        own.pop((request, place), None)
        own[request, place] = self._clock() + self._settings.ttl_s, record
        record.judge = self._judged.add
        if self._remembered > self._settings.max_requests:
            max(self._answers.values(), key=len).popitem(last=False)

    @property
    def _remembered(self) -> int:
        return sum(map(len, self._answers.values()))

    def _forget(self) -> None:
        now = self._clock()
        for answers in self._answers.values():
            while answers and next(iter(answers.values()))[0] <= now:
                answers.popitem(last=False)

    def remembers(self, request: str, place: int, key: str = "") -> bool:
        """Tell whether the store remembers the answer to an image of a key's request."""
        self._forget()
        return (request, place) in self._answers.get(key, ())

    def is_class(self, label: str | int) -> bool:
        """Tell whether a label is the name or the index of a class."""
        return label in self._labels if isinstance(label, str) else 0 <= label < len(self._labels)

    def take(self, request: str, label: str | int, place: int = 0, key: str = "") -> None:
        """Take the true label of an image of a key's request: the name or the index of a class.

        Raises:
            UnknownLabel: there is no such class.
            UnknownRequest: the answer is not remembered, or no longer.
            AlreadyLabelled: it has a label.
        """
        try:
            record, truth = self._found(request, label, place, key)
        except EnsembleError as err:
            self._sent.add(err.code)
            raise
        self._sent.add("accepted")
        self._judged.add(ENSEMBLE, "", "", record.index == truth)
        for name, index in record.members.items():
            self._judged.add("member", name, "", index == truth)
            if name in record.versions:
                self._judged.add("version", name, record.versions[name], index == truth)
        if record.last:
            self._judged.add("exit", record.last, "", record.index == truth)
        record.set_label(truth)

    def _found(self, request: str, label: str | int, place: int, key: str) -> tuple[Record, int]:
        """Return the record of an answer without a label, and the index of the class."""
        if not self.is_class(label):
            raise UnknownLabel(
                f"{str(label)[:MAX_QUOTED]!r} is no class; there are {len(self._labels)}, by name or index"
            )
        self._forget()
        found = self._answers.get(key, OrderedDict()).get((request, place))
        image = f"image {place} of request {request[:MAX_QUOTED]!r}"
        if found is None:
            raise UnknownRequest(f"no answer to {image} is remembered: it was never given here, or is too old")
        if found[1].label is not None:
            raise AlreadyLabelled(f"{image} has a label already")
        return found[1], self._labels[label] if isinstance(label, str) else label

    def figures(self) -> FeedbackStats:
        """Return the figures for `/stats`."""
        answers = self._judged.counts
        shares: dict[str, dict[str, dict[str, Proportion]]] = {}
        for kind, name, version in sorted({tuple(map(str, key[:3])) for key in answers}):
            right, wrong = (answers[kind, name, version, outcome] for outcome in (True, False))
            shares.setdefault(kind, {}).setdefault(name, {})[version] = proportion(right, right + wrong)

        def of(kind: str) -> dict[str, Proportion]:
            return {name: by_version[""] for name, by_version in shares.get(kind, {}).items()}

        return FeedbackStats(
            self._remembered,
            {str(result): count for (result,), count in self._sent.counts.items()},
            of(ENSEMBLE).get("", proportion(0, 0)),
            of("member"),
            shares.get("version", {}),
            of("exit"),
            of("shadow"),
        )
