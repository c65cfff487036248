"""What was answered, for as long as somebody may tell what would have been right; and how often it was."""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from deployments.contract.errors import AlreadyLabelled, EnsembleError, UnknownLabel, UnknownRequest
from graph.capabilities.feedback.figures import FeedbackStats
from graph.capabilities.feedback.settings import FeedbackSettings
from graph.capabilities.proportion import Proportion, proportion
from graph.flows.record import ENSEMBLE, Record

if TYPE_CHECKING:
    from graph.capabilities.feedback.metrics import FeedbackMetrics

# Characters of what a caller sent that are told back, and of a request's id that is remembered.
MOST_QUOTED, LONGEST_ID = 40, 256
# True labels at once; the highest position of an image in its request.
MOST_LABELS, MOST_PLACE = 4096, 100_000

# Takes a label by the request's id, the class, the image's position, and the name of the caller's key, empty for none;
# raises as `FeedbackStore.take`.
TakesLabel = Callable[[str, str | int, int, str], Awaitable[None]]
# What is right or wrong: its kind (ensemble, member, version, exit, shadow), its name and, of a version, which.
Who = tuple[str, str, str]


class FeedbackStore:
    """Remembers answers by their requests' ids, and compares them with true labels."""

    def __init__(
        self,
        settings: FeedbackSettings,
        labels: Sequence[str],
        counts: FeedbackMetrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Set how much is remembered, the classes' names in order of index, who counts, and the clock, seconds."""
        self._settings, self._counts, self._clock = settings, counts, clock
        self._labels: Mapping[str, int] = {label: index for index, label in enumerate(labels)}
        # By the name of the key that the request showed, its id, and the image's position in it.
        self._answers: OrderedDict[tuple[str, str, int], tuple[float, Record]] = OrderedDict()
        self._results: Counter[str] = Counter()
        self._judged: dict[Who, Counter[bool]] = {}

    def remember(self, request: str, place: int, record: Record, key: str = "") -> None:
        """Remember an answer by the name of its caller's API key, its request's id and its position in it.

        What is too much goes, the oldest first. Requests of different keys share no ids.
        """
        if len(request) > LONGEST_ID:
            return
        self._forget()
        self._answers.pop((key, request, place), None)
        self._answers[key, request, place] = self._clock() + self._settings.ttl_s, record
        record.watchers.append(self._judge_shadow)
        if len(self._answers) > self._settings.max_requests:
            self._answers.popitem(last=False)

    def _forget(self) -> None:
        now = self._clock()
        while self._answers and next(iter(self._answers.values()))[0] <= now:
            self._answers.popitem(last=False)

    def remembers(self, request: str, place: int, key: str = "") -> bool:
        """Whether the answer to an image of a key's request is remembered."""
        self._forget()
        return (key, request, place) in self._answers

    def is_class(self, label: str | int) -> bool:
        """Whether a label is the name of a class, or its index."""
        return label in self._labels if isinstance(label, str) else 0 <= label < len(self._labels)

    def take(self, request: str, label: str | int, place: int = 0, key: str = "") -> None:
        """Take the true label of an image of a key's request: a class' name, or its index.

        Raises:
            UnknownLabel: it is no class.
            UnknownRequest: the answer is not, or no longer, remembered.
            AlreadyLabelled: it has a label.
        """
        try:
            record, truth = self._found(request, label, place, key)
        except EnsembleError as err:
            self._count(err.code)
            raise
        self._count("accepted")
        self._judge("ensemble", "", "", record.index == truth)
        for name, index in record.members.items():
            self._judge("member", name, "", index == truth)
            if name in record.versions:
                self._judge("version", name, record.versions[name], index == truth)
        if record.last:
            self._judge("exit", record.last, "", record.index == truth)
        record.set_label(truth)

    def _found(self, request: str, label: str | int, place: int, key: str) -> tuple[Record, int]:
        """The record of an answer without a label, and the index of the class."""
        if not self.is_class(label):
            raise UnknownLabel(
                f"{str(label)[:MOST_QUOTED]!r} is no class; there are {len(self._labels)}, by name or index"
            )
        self._forget()
        found = self._answers.get((key, request, place))
        if found is None:
            told = f"no answer to image {place} of request {request[:MOST_QUOTED]!r} is remembered"
            raise UnknownRequest(f"{told}: it was never given here, or is too old")
        record, index = found[1], self._labels[label] if isinstance(label, str) else label
        if record.label is not None:
            raise AlreadyLabelled(f"image {place} of request {request[:MOST_QUOTED]!r} has a label already")
        return record, index

    def _judge_shadow(self, record: Record, name: str) -> None:
        self._judge("shadow", name, "", record.shadows[name] == record.label)

    def _judge(self, kind: str, name: str, version: str, right: bool) -> None:
        self._judged.setdefault((kind, name, version), Counter())[right] += 1
        self._counts.judged(kind, name, version, right)

    def _count(self, result: str) -> None:
        self._results[result] += 1
        self._counts.labelled(result)

    def figures(self) -> FeedbackStats:
        """What was counted."""
        shares = {who: proportion(by[True], by.total()) for who, by in sorted(self._judged.items())}
        named = {kind: {n: s for (k, n, _), s in shares.items() if k == kind} for kind in ("member", "exit", "shadow")}
        versions: dict[str, dict[str, Proportion]] = {}
        for (kind, name, version), share in shares.items():
            if kind == "version":
                versions.setdefault(name, {})[version] = share
        return FeedbackStats(
            len(self._answers),
            dict(self._results),
            shares.get((ENSEMBLE, "", "")) or proportion(0, 0),
            named["member"],
            versions,
            named["exit"],
            named["shadow"],
        )
