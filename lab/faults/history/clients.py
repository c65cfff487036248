"""Clients that send images and true labels, and record every answer."""

from __future__ import annotations

import asyncio
import json
import random
import threading
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from ensemble_serving.transports import NoResponse, Request, connect
from ensemble_serving.transports.request import Transport
from lab.faults.history.record import Kind, Record

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
