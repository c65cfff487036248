"""A canary's trial: which images it answers, how it compares with the other version, and when it is rolled back."""

import hashlib
import logging
from collections import Counter as Tally
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from deployments.contract.caller import ADDRESS, Caller
from deployments.contract.counting import TaggedCounter
from deployments.contract.item import Item
from ensemble_features.canary.evidence import LIMIT, Allowance, Question, Reason, Score
from ensemble_features.canary.settings import CanaryConfig, CanarySettings
from ensemble_features.proportion import Proportion, proportion
from ensemble_features.record import Record, count_by_rightness
from ensemble_serving.answer import Version

logger = logging.getLogger("ray.serve")

Role = Literal["canary", "stable"]
HEADER = "header:"
ALL = 2**64
# A call that takes so many times the usual time, and at least so many seconds, has failed.
TAIL, LEAST_PATIENCE_S = 10, 0.25
# The latest calls of each version, whose median is its usual time.
LATEST = 1000
# How often the images of a request may count for each question.
PER_REQUEST = 4
# The least share of failures that is told from none.
LEAST_SHARE = 0.001

OTHERS = Question(
    "answers",
    "the other members agree with the stable version alone on {against} of {total} images, and with the canary alone "
    "on the others",
    *(0.55, 0.85),
)
LABELS = Question(
    "answers", "by true labels the stable version alone is right on {against} of {total} images", 0.55, 0.85
)
DIFFERS = Question(
    "answers",
    "it differs from the stable version on {against} of {total} images, of which no other member's answer is known",
    *(0.5, 0.8),
)


class VersionStats(msgspec.Struct, frozen=True):
    """A version of a member that has a canary."""

    images: Annotated[int, Meta(description="images that it received")]
    failed: Annotated[int, Meta(description="of these, those that it alone failed on")]
    agreed: Annotated[Proportion, Meta(description="with most of the other members; none if there are no others")]
    median_ms: Annotated[float | None, Meta(description="per image, of its last calls; null if none")]


class LabelledPairs(msgspec.Struct, frozen=True):
    """Compared images with a true label, by which version was right."""

    both: int
    canary_only: int
    stable_only: int
    neither: int


class CanaryStats(msgspec.Struct, frozen=True):
    """A canary, since the start of the ingress replica."""

    share: Annotated[float, Meta(description="in force")]
    rolled_back: Annotated[
        str, Meta(description="`failures`, `latency` or `answers` if it was rolled back, else empty")
    ]
    found: Annotated[str, Meta(description="what speaks against it, with figures; else empty")]
    canary: VersionStats
    stable: VersionStats
    agreed: Annotated[Proportion, Meta(description="images that both versions were asked about, with the same answer")]
    labelled: LabelledPairs


class CanaryCounters:
    """The counts of all canaries; the role is `canary` or `stable`."""

    def __init__(self, took: Callable[[float, str, str], None]) -> None:
        """Set what counts the seconds that a version took, by member and role."""
        self.images = TaggedCounter(
            "ensemble_canary_images",
            "Images that a version of a member received, by whether it alone failed on them.",
            *("member", "role", "failed"),
        )
        self.predictions = TaggedCounter(
            "ensemble_canary_predictions",
            "Images by the version of a member that answered, and by whether most of the other members agreed.",
            *("member", "role", "version", "agrees"),
        )
        self.rollbacks = TaggedCounter(
            "ensemble_canary_rollbacks",
            "Canaries that were rolled back, by the reason: failures, latency or answers.",
            *("member", "reason"),
        )
        self.took = took


class Trial:
    """Draws the images of a canary, and rolls it back when the evidence against it is strong enough.

    Attributes:
        name: the member's.
        header: the request's header that decides, in small letters; None for the image itself.
        rolled_back: why it was rolled back; empty if it was not. New settings start it again.
        found: the evidence against it, as a sentence; empty if there is none.
        seconds: how long each version took for its last calls, per image.
        compared: images on which the two versions were compared.
    """

    def __init__(self, name: str, config: CanaryConfig, counters: CanaryCounters) -> None:
        self.name = name
        self.header = config.key.removeprefix(HEADER).lower() if config.key.startswith(HEADER) else None
        self._counters = counters
        # Compared images, by whether the versions agreed; with a true label, by whether the canary and the other did.
        self._agreed: Tally[bool] = Tally()
        self._labelled: Tally[tuple[bool, bool]] = Tally()
        self._salt = f"{name} {config.version} ".encode()
        self.settings = CanarySettings.part_of(config)

    @property
    def settings(self) -> CanarySettings:
        """The configured share and bounds."""
        return self._settings

    @settings.setter
    def settings(self, settings: CanarySettings) -> None:
        self._settings = settings
        self.rolled_back: Reason | Literal[""] = ""
        self.found = ""
        self.compared = self._images = 0
        self._scores: dict[str, Score] = {}
        self._per_request, self._per_image = Allowance(PER_REQUEST), Allowance(1)
        self.seconds: dict[Role, deque[float]] = {"canary": deque(maxlen=LATEST), "stable": deque(maxlen=LATEST)}

    @property
    def share(self) -> float:
        """The share in force: 0 once it was rolled back."""
        return 0.0 if self.rolled_back else self._settings.share

    def takes(self, image: bytes, by: Caller) -> bool:
        """Tell whether the canary answers an image: the same for equal keys, and still so when the share grows."""
        share = self.share
        if not 0 < share < 1:
            return share == 1
        key = None if self.header is None else by.headers.get(self.header)
        value = b"image" + image if key is None else b"key" + key.encode("utf-8", "surrogatepass")
        drawn = hashlib.blake2b(self._salt + value, digest_size=8).digest()
        return int.from_bytes(drawn) < share * ALL

    def note(self, role: Role, items: Sequence[Item], failed: Sequence[bool], seconds: float) -> None:
        """Note a call of a version: the images, whether that version alone failed on each, and how long it took."""
        for outcome in (False, True):
            self._counters.images.add(self.name, role, outcome, count=failed.count(outcome))
        self._counters.took(seconds, self.name, role)
        self.seconds[role].append(seconds / len(failed))
        if role == "canary":
            self._images += len(failed)
            # A call that fails as a whole is one event, such as a lost connection, however many images it has.
            weight = 1 / len(failed) if all(failed) else 1.0
            for item, each in zip(items, failed, strict=True):
                self._count(self._failures, item.caller, item.request, each, weight)
            self.judge()

    def took(self, items: Sequence[Item], canary_s: float, stable_s: float) -> None:
        """Note how long each version took for the same images, seconds."""
        size, bound = 1 << (len(items).bit_length() - 1), self._settings.max_slowdown
        words = (
            f"for {{against}} of {{total}} requests in batches of {size} to {2 * size - 1} images it took more than "
            f"max_slowdown = {bound} times as long as the stable version; the last one took {canary_s * 1000:.1f} and "
            f"{stable_s * 1000:.1f} ms"
        )
        question = Question("latency", words, 0.5, 0.9)
        requests = {(client(item.caller), item.request): item for item in items}
        for item in requests.values():
            is_slow = canary_s > bound * stable_s
            self._count(question, item.caller, item.request, is_slow, 1 / len(requests), f"latency {size}")

    def answered(self, by: Caller, request: int, pixels: bytes, both: tuple[int, int], record: Record) -> None:
        """Compare the two versions' classes of an image, the canary's first."""
        canary, stable = both
        self.compared += 1
        self._agreed[canary == stable] += 1
        if not self._per_image.take(hashlib.blake2b(pixels, digest_size=16).digest()):
            return
        others = record.without(self.name)
        for_canary, for_stable = others.count(canary), others.count(stable)
        if not others:
            self._count(DIFFERS, by, request, canary != stable)
        elif for_canary != for_stable:
            self._count(OTHERS, by, request, for_stable > for_canary)
        record.when_labelled(partial(self._judge_labelled, by, request, canary, stable))

    def _judge_labelled(self, by: Caller, request: int, canary: int, stable: int, label: int) -> None:
        self._labelled[canary == label, stable == label] += 1
        if (canary == label) != (stable == label):
            self._count(LABELS, by, request, stable == label)
            self.judge()

    def patience_s(self, images: int) -> float | None:
        """Return the seconds to wait for the canary; None as long as the other version's time is unknown.

        The other images of the batch wait with it, so this is much less than the member's patience.
        """
        usual = self.seconds["stable"]
        if len(usual) < min(self._settings.least, LATEST):
            return None
        return max(LEAST_PATIENCE_S, TAIL * self._settings.max_slowdown * median(usual) * images)

    def predicted(self, by_canary: bool, version: Version | None, agrees: bool) -> None:
        """Count an image by the version that answered it, and whether most of the other members agree."""
        self._counters.predictions.add(self.name, "canary" if by_canary else "stable", str(version), agrees)

    def figures(self) -> CanaryStats:
        """Return the figures for `/stats`."""
        canary, stable = (self._version_stats(role) for role in self.seconds)
        agreed = proportion(self._agreed[True], self._agreed.total())
        pairs = LabelledPairs(*count_by_rightness(self._labelled))
        return CanaryStats(self.share, self.rolled_back, self.found, canary, stable, agreed, pairs)

    def _version_stats(self, role: Role) -> VersionStats:
        answered, failed = (self._counters.images.counts[self.name, role, outcome] for outcome in (False, True))
        counts = self._counters.predictions.counts
        predicted = [(key[3], n) for key, n in counts.items() if key[:2] == (self.name, role)]
        agreed = proportion(sum(n for agrees, n in predicted if agrees), sum(n for _, n in predicted))
        seconds = self.seconds[role]
        return VersionStats(answered + failed, failed, agreed, round(median(seconds) * 1000, 3) if seconds else None)

    @property
    def _failures(self) -> Question:
        allowed = max(self._settings.max_failures, LEAST_SHARE)
        words = f"it failed on {{against}} of {{total}} images, more than max_failures = {self._settings.max_failures}"
        return Question("failures", words, allowed, min(2 * allowed, (1 + allowed) / 2))

    def _count(
        self, question: Question, by: Caller, request: int, against: bool, weight: float = 1.0, kind: str = ""
    ) -> None:
        """Count an answer, unless its request has counted often enough."""
        kind, sender = kind or question.words, client(by)
        if self._per_request.take((kind, sender, request)):
            score = self._scores.setdefault(kind, Score(question))
            score.question = question
            score.add(sender, against, weight)

    def judge(self) -> None:
        """Roll the canary back if the evidence against it is strong enough, whichever client is left out."""
        if self.rolled_back or self._images < self._settings.least:
            return
        labels = self._scores.get(LABELS.words)
        is_better = labels is not None and labels.is_good
        for score in self._scores.values():
            reason = score.question.reason
            if score.total < LIMIT or (reason == "answers" and is_better):
                continue
            if score.without_any_client >= LIMIT:
                self._roll_back(reason, str(score))
                return
            if not self.found:
                self.found = f"only by one client's images: {score}"
                logger.warning("canary of member %r is suspect, but goes on: %s", self.name, self.found)

    def _roll_back(self, reason: Reason, found: str) -> None:
        logger.error(
            "canary of member %r is rolled back for its %s, its share is 0 until its settings change: %s",
            *(self.name, reason, found),
        )
        self.rolled_back, self.found = reason, found
        self._counters.rollbacks.add(self.name, reason)


def client(by: Caller) -> str:
    """Name the sender of an image, whose evidence alone does not decide: by its key, or its address."""
    return by.name or by.headers.get(ADDRESS, "")
