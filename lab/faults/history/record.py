"""A history: requests and answers of clients, which record them, and the faults of the server meanwhile."""

from __future__ import annotations

import asyncio
import json
import random
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal

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
