"""Histories: what clients asked and got, and the checker of answers that were not possible.

A rule yields the records that contradict each other, two at most. The checker must also find five planted faults.
"""

from __future__ import annotations

import asyncio
import json
import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Literal

import numpy as np

from ensemble_serving.transports import NoResponse, Request, connect
from ensemble_serving.transports.request import Transport
from lab.faults.stage import Away, InForce

# An image is classified; a true label is sent for an answer; the same label is sent again, at the end.
Kind = Literal["image", "label", "audit"]


@dataclass(frozen=True)
class Record:
    """A request and its answer. Times are seconds of one clock.

    Attributes:
        kind: see `Kind`.
        subject: the image's name; of a label, the id of the request that it is for.
        start: when the client sent the request.
        end: when the answer had come, or the client gave up.
        status: of HTTP; 0 if there was no answer.
        answer: the JSON body.
        user: the value of the canary's key.
        sent_id: the request's id.
        answered_id: the id in the answer's headers.
    """

    kind: Kind
    subject: str
    start: float
    end: float
    status: int
    answer: Mapping[str, Any] = field(default_factory=dict)
    user: str = ""
    sent_id: str = ""
    answered_id: str = ""

    @property
    def code(self) -> str:
        """The error's code; empty for none."""
        error = self.answer.get("error", {})
        return str(error.get("code", "")) if isinstance(error, Mapping) else ""

    @property
    def versions(self) -> Mapping[str, int]:
        """The version of each member that answered."""
        return self.answer.get("model_versions", {}) if self.status == 200 else {}

    @property
    def predictions(self) -> Mapping[str, list[float]]:
        """Each member's probabilities in the order of the classes; an answer has them in the order of its own `top`."""
        order = [each["index"] for each in self.answer["top"]]
        members = self.answer.get("members", {})
        return {
            name: [p for _, p in sorted(zip(order, member["probabilities"], strict=True))]
            for name, member in members.items()
        }

    @property
    def is_hit(self) -> bool:
        """Whether a cache had the answer."""
        return bool((self.answer.get("cache") or {}).get("hit"))

    def overlaps(self, start: float, end: float) -> bool:
        """Tell whether the request was under way at some time of an interval."""
        return self.start <= end and start <= self.end


@dataclass(frozen=True)
class History:
    """What happened.

    Attributes:
        records: of all clients, in the order of their starts.
        in_force: which versions may answer when.
        away: which processes were away when.
        bound: images that the server admits at a time.
        ttl_s: of a cached answer, seconds.
        canaries: the canary's version, by its member.
    """

    records: tuple[Record, ...]
    in_force: tuple[InForce, ...]
    away: tuple[Away, ...] = ()
    bound: int = 256
    ttl_s: float = 600.0
    canaries: Mapping[str, int] = field(default_factory=dict)


PATH = "/classify?members=true&top_k=10"
USERS, LABELLED, PAUSE_S = 16, 0.05, 0.1
TIMEOUT_S = 60.0


class Clients:
    """Clients that send one request after the other, without retries, until the block ends.

    Attributes:
        records: what they asked and got.
    """

    def __init__(self, url: str, images: Sequence[bytes], count: int, seed: int, *, labels: bool) -> None:
        """Set the server, the images, the number of clients, and whether they also send true labels."""
        self.records: list[Record] = []
        self._url, self._images, self._count, self._seed, self._labels = url, images, count, seed, labels
        self._over = False
        self._thread = threading.Thread(target=lambda: asyncio.run(self._all()))

    def __enter__(self) -> Clients:
        """Start the clients."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait for the last answers, then send every accepted label again."""
        self._over = True
        self._thread.join()

    async def _all(self) -> None:
        transport = connect(self._url, timeout_s=TIMEOUT_S)
        try:
            await asyncio.gather(*(self._client(transport, number) for number in range(self._count)))
            for label in [each for each in self.records if each.kind == "label" and each.status == 200]:
                await self._label(transport, "audit", label.subject)
        finally:
            await transport.close()

    async def _client(self, transport: Transport, number: int) -> None:
        chance = random.Random(f"{self._seed} {number}")
        sent = 0
        while not self._over:
            sent += 1
            name, user = chance.randrange(len(self._images)), f"user-{chance.randrange(USERS)}"
            own = f"{self._seed}-{number}-{sent}"
            headers = (("content-type", "image/jpeg"), ("x-user", user), ("x-request-id", own))
            request = Request(PATH, self._images[name], headers)
            record = await self._recorded(transport, "image", str(name), request, user, own)
            if record.status != 200:
                await asyncio.sleep(PAUSE_S)
            elif self._labels and chance.random() < LABELLED:
                await self._label(transport, "label", own)

    async def _label(self, transport: Transport, kind: Kind, number: str) -> None:
        body = json.dumps({"request_id": number, "label": "cat"}).encode()
        headers = (("content-type", "application/json"),)
        await self._recorded(transport, kind, number, Request("/feedback", body, headers))

    async def _recorded(
        self, transport: Transport, kind: Kind, subject: str, request: Request, user: str = "", own: str = ""
    ) -> Record:
        start, status, answered = time.perf_counter(), 0, ""
        answer: Mapping[str, Any] = {}
        try:
            response = await transport.send(request)
        except NoResponse:
            pass
        else:
            status, answer = response.status, _json(response.body)
            answered = response.header("x-request-id") or ""
        record = Record(kind, subject, start, time.perf_counter(), status, answer, user, own, answered)
        self.records.append(record)
        return record


def _json(body: bytes) -> Mapping[str, Any]:
    try:
        found = json.loads(body)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


# Predictions for one image differ by less between batches of different sizes.
TOLERANCE = 0.05
# The age of a cached answer is rounded, and counts from a moment within the first request.
AGE_SLACK_S = 1.0


@dataclass(frozen=True)
class Violation:
    """An impossible answer: the rule, and the records that show it."""

    rule: str
    why: str
    records: tuple[Record, ...]


Rule = Callable[[History], Iterator[Violation]]


def _images(history: History) -> list[Record]:
    return [each for each in history.records if each.kind == "image" and each.status == 200]


def version(history: History) -> Iterator[Violation]:
    """Find answers of a version that was not in force at any time of the request."""
    for each in _images(history):
        for member, number in each.versions.items():
            spans = [span for span in history.in_force if (span.member, span.version) == (member, number)]
            if not any(each.overlaps(span.start, span.end) for span in spans):
                yield Violation("version", f"version {number} of {member} was not in force", (each,))


def same_answer(history: History) -> Iterator[Violation]:
    """Find two predictions of one member's version, or two labels of the same versions, that differ for one image."""
    first: dict[tuple[object, ...], tuple[Record, np.ndarray]] = {}
    for each in _images(history):
        for member, prediction in each.predictions.items():
            key: tuple[object, ...] = each.subject, member, each.versions.get(member)
            other, known = first.setdefault(key, (each, np.array(prediction)))
            if np.abs(prediction - known).max() > TOLERANCE:
                yield Violation("answer", f"two predictions of {member} for image {each.subject}", (other, each))
        key = each.subject, *sorted(each.versions.items())
        other, _ = first.setdefault(key, (each, np.empty(0)))
        if other.answer["label"] != each.answer["label"]:
            yield Violation("answer", f"two labels of the same versions for image {each.subject}", (other, each))


def own_answer(history: History) -> Iterator[Violation]:
    """Find answers that carry another request's id."""
    for each in history.records:
        if each.answered_id and each.sent_id and each.answered_id != each.sent_id:
            yield Violation("answer", f"the answer has the id {each.answered_id}, not {each.sent_id}", (each,))


def cache(history: History) -> Iterator[Violation]:
    """Find cached answers that are too old, or that no request can have stored."""
    stored: dict[tuple[object, ...], list[Record]] = defaultdict(list)
    for each in _images(history):
        if not each.is_hit:
            stored[each.subject, *sorted(each.versions.items())].append(each)
    for each in _images(history):
        if not each.is_hit:
            continue
        age = each.answer["cache"]["age_s"]
        earliest, latest = each.start - age - AGE_SLACK_S, each.end - age + AGE_SLACK_S
        sources = stored[each.subject, *sorted(each.versions.items())]
        if age > history.ttl_s + AGE_SLACK_S or not any(one.overlaps(earliest, latest) for one in sources):
            yield Violation("cache", f"no request stored this answer {age} s before", (each,))


def feedback(history: History) -> Iterator[Violation]:
    """Find labels that were accepted, and that the server did not have at the end."""
    accepted = {each.subject: each for each in history.records if each.kind == "label" and each.status == 200}
    for audit in history.records:
        label = accepted.get(audit.subject) if audit.kind == "audit" else None
        if label is None or audit.code == "already_labelled" or audit.status == 0:
            continue
        if not any(gone.part == "Ingress" and gone.end >= label.start for gone in history.away):
            yield Violation("feedback", f"an accepted label is gone: {audit.status} {audit.code}", (label, audit))


def canary(history: History) -> Iterator[Violation]:
    """Find users who got the canary, then the stable version, and then the canary again: a rollback has no return."""
    for member, number in history.canaries.items():
        users: dict[str, list[Record]] = defaultdict(list)
        for each in _images(history):
            if member in each.versions:
                users[each.user].append(each)
        for records in users.values():
            began = next((each for each in records if each.versions[member] == number), None)
            left = [each for each in records if began and each.start > began.end and each.versions[member] != number]
            left = sorted(left, key=lambda each: each.end)[:1]
            for each in records:
                if left and each.start > left[0].end and each.versions[member] == number:
                    yield Violation("canary", f"user {each.user} got both versions of {member}", (left[0], each))


def refusal(history: History) -> Iterator[Violation]:
    """Find refusals below the bound, and failures while nothing was away."""
    images = [each for each in history.records if each.kind == "image"]
    for each in history.records:
        if each.kind == "audit" or 200 <= each.status < 300:
            continue
        if each.code == "overloaded":
            # A request counts for each moment of the refused one: this is the most that can have been in flight.
            if sum(other is not each and other.overlaps(each.start, each.end) for other in images) < history.bound:
                yield Violation("refusal", "refused below the bound", (each,))
        elif not any(each.overlaps(gone.start, gone.end) for gone in history.away):
            yield Violation("refusal", f"failed while nothing was away: {each.status} {each.code}", (each,))


def missing(history: History) -> Iterator[Violation]:
    """Find answers without a member that was there all the time."""
    for each in _images(history):
        for member in each.answer.get("missing") or ():
            spans = [gone for gone in history.away if gone.part == member]
            if not any(each.overlaps(gone.start, gone.end) for gone in spans):
                yield Violation("missing", f"{member} is missing, and was there", (each,))


RULES: tuple[Rule, ...] = (version, same_answer, own_answer, cache, feedback, canary, refusal, missing)


def violations(history: History) -> list[Violation]:
    """Return every answer of a history that was not possible."""
    return [found for rule in RULES for found in rule(history)]


# Yields records that a fault can change, each with its changed form.
Plant = Callable[[History, Sequence[Record]], Iterator[tuple[Record, Record]]]
NEVER = 99


def _with(record: Record, **answer: Any) -> Record:
    return replace(record, answer={**record.answer, **answer})


def neighbour(_: History, answers: Sequence[Record]) -> Iterator[tuple[Record, Record]]:
    """Give a request the answer to another image, sent at about the same time."""
    for one in answers:
        for other in answers:
            near = other.overlaps(one.start - 1, one.end + 1) and other.versions == one.versions
            if near and other.subject != one.subject and _differ(one, other):
                yield one, replace(one, answer={**other.answer, "cache": one.answer.get("cache")})


def _differ(one: Record, other: Record) -> bool:
    theirs = other.predictions
    shared = [(values, theirs[name]) for name, values in one.predictions.items() if name in theirs]
    return any(np.abs(np.subtract(*pair)).max() > TOLERANCE for pair in shared)


def stale(history: History, answers: Sequence[Record]) -> Iterator[tuple[Record, Record]]:
    """Let a cached answer be older than any request that stored it."""
    for one in answers:
        if one.is_hit:
            yield one, _with(one, cache={"hit": True, "age_s": one.end - history.records[0].start + 60})


def undeployed(_: History, answers: Sequence[Record]) -> Iterator[tuple[Record, Record]]:
    """Let an answer come from a version that nobody deployed."""
    for one in answers:
        yield one, _with(one, model_versions={**one.versions, next(iter(one.versions)): NEVER})


def lost(history: History, _: Sequence[Record]) -> Iterator[tuple[Record, Record]]:
    """Lose a label after its 200, though no ingress was away since: the same label is accepted once more."""
    since = max((gone.end for gone in history.away if gone.part == "Ingress"), default=float("-inf"))
    kept = {each.subject for each in history.records if each.kind == "label" and each.start > since}
    for one in history.records:
        if one.kind == "audit" and one.code == "already_labelled" and one.subject in kept:
            yield one, replace(one, status=200, answer={"accepted": 1})


def double_canary(history: History, answers: Sequence[Record]) -> Iterator[tuple[Record, Record]]:
    """Let a user get the other version between two answers of the canary."""
    for member, number in history.canaries.items():
        given = [each for each in answers if each.versions.get(member) == number]
        stable = next(span.version for span in history.in_force if span.version != number)
        for one in given:
            theirs = [each for each in given if each.user == one.user]
            if any(each.end < one.start for each in theirs) and any(each.start > one.end for each in theirs):
                yield one, _with(one, model_versions={**one.versions, member: stable})


# By name: the fault, and the rule that it breaks.
PLANTED: dict[str, tuple[Plant, str]] = {
    "neighbour": (neighbour, "answer"),
    "stale": (stale, "cache"),
    "undeployed": (undeployed, "version"),
    "lost": (lost, "feedback"),
    "double canary": (double_canary, "canary"),
}


def planted(history: History, plant: Plant, seed: int) -> History | None:
    """Return the history with a fault in it; None where the history has nothing to plant the fault into."""
    answers = [each for each in history.records if each.kind == "image" and each.status == 200]
    random.Random(seed).shuffle(answers)
    for old, new in plant(history, answers):
        return replace(history, records=tuple(new if each is old else each for each in history.records))
    return None
