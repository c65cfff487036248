"""The node of a remote member: images in, another server's probabilities out."""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

from deployments.contract.batch import Batch, Work
from deployments.contract.errors import EnsembleError, InferenceFailed
from deployments.contract.item import AttributeValue, Item, Version
from deployments.contract.member import Agreed
from deployments.contract.payload import Images, Pixels, Probabilities
from deployments.contract.preprocessing import AsSent, Preprocessing
from deployments.remote.addresses import Address, Addresses
from deployments.remote.failures import CallError, Late, Misfit
from deployments.remote.server import Server
from deployments.remote.settings import RemoteConfig
from deployments.remote.tensors import Fit, packed, parts, probabilities

logger = logging.getLogger("ray.serve")

NO_SCORES: Probabilities = np.empty((0, 0), np.float32)
UNKNOWN = "unknown"
# Before a call is tried again: this at first, at random up to twice of it, and twice as long each time.
BACK_OFF_S = 0.025
# Time enough for an answer: a call that had less and no answer doesn't speak against the server.
FAIR_S = 1.0
LOG_EVERY_S = 5.0


class RemoteMember:
    """Asks another model server; whatever that does, only this member's answer is lost."""

    def __init__(self, config: RemoteConfig, agreed: Agreed, connect: Callable[[str], Server]) -> None:
        """Set how the server is asked.

        Args:
            config: of the member.
            agreed: what the member gets, and the classes that it must answer.
            connect: makes what asks an IP address.
        """
        self.name = config.name
        self.version: Version = UNKNOWN
        self._config, self._agreed = config, agreed
        self._addresses = Addresses(config, connect, self._check)
        self._logged = float("-inf")

    def addresses(self) -> tuple[int, int]:
        """How many of the server's addresses are asked, and how many are left alone."""
        return self._addresses.count()

    def _check(self, how: Fit) -> None:
        """Raise Misfit if a server's model doesn't go with what this member gets and must answer."""
        images = self._agreed.images
        if how.as_sent != isinstance(images, AsSent):
            takes = "images as they were sent" if how.as_sent else "pixels"
            raise Misfit(f"its model takes {takes}; say `as_sent: {str(how.as_sent).lower()}`, or start after it")
        if isinstance(images, Preprocessing) and how.size not in {None, images.size}:
            raise Misfit(f"its model takes {how.size}, but gets {images.size}; say its `size`, or start after it")
        if how.classes not in {None, len(self._agreed.labels)}:
            raise Misfit(f"its model has {how.classes} classes, the ensemble {len(self._agreed.labels)}")

    async def __call__(self, batch: Batch[Images]) -> Batch[Probabilities]:
        """Pixels, uint8 [N,H,W,3] BGR, or images as they were sent, to probabilities, float32 [N,C].

        If the call fails, every image has failed; an image whose answer is no distribution fails alone.
        """
        work = Work(self._config.operation, batch)
        if len(work.payload) == 0:
            return work.done(NO_SCORES)
        attributes: dict[str, AttributeValue] = {
            "ensemble.model.name": self._config.model_name,
            "server.address": self._config.host,
            "server.port": self._config.port,
        }
        span = secrets.token_hex(8)
        errors: dict[int, EnsembleError] = {}
        scores, versions = NO_SCORES, [UNKNOWN]
        try:
            scores, versions, tries = await self._ask(work.payload, work.batch.items, span)
            self.version = versions[-1]
            attributes |= {"ensemble.model.version": self.version, "ensemble.remote.tries": tries}
        except CallError as err:
            self._log(err)
            failed = err.kind(f"member {self.name!r} has no answer from its server; the server's log has the cause")
            errors = dict.fromkeys(range(len(work.payload)), failed)
        wrong = np.isnan(scores).any(axis=1)
        if wrong.any():
            logger.error(
                "member %r: %d answers are no probabilities; if they are logits, say `scores: logits`",
                self.name,
                np.count_nonzero(wrong),
            )
            nonsense = InferenceFailed(f"member {self.name!r} answered no probabilities")
            errors = dict.fromkeys(np.flatnonzero(wrong).tolist(), nonsense)
            scores, versions = scores[~wrong], [versions[row] for row in np.flatnonzero(~wrong)]

        def changes(row: int) -> dict[str, Any]:
            return {"versions": {self.name: versions[row]}}

        return work.done(scores, changes, errors=errors, attributes=attributes, span=span)

    async def _ask(self, images: Images, items: Sequence[Item], span: str) -> tuple[Probabilities, list[str], int]:
        """The scores, the version that gave each row, and how often a server was asked."""
        deadlines = [item.deadline for item in items if item.error is None and item.deadline is not None]
        live = sum(item.error is None for item in items)
        timeout_s = self._config.timeout_ms / 1000
        if len(deadlines) == live:
            timeout_s = min(timeout_s, max(deadlines) - time.time())
        give_up = time.monotonic() + timeout_s
        headers = {"traceparent": _trace_parent(items, span)}
        try:
            async with asyncio.timeout(timeout_s):
                most = self._rows(await self._addresses.well(timeout_s))
                answers = await asyncio.gather(
                    *(self._ask_part(part, headers, give_up) for part in parts(images, most))
                )
        except TimeoutError:
            raise Late(f"no answer in {timeout_s * 1000:.0f} ms") from None
        scores = np.concatenate([scores for scores, _, _ in answers])
        versions = [version for part, version, _ in answers for _ in range(len(part))]
        return scores, versions, sum(tries for _, _, tries in answers)

    def _rows(self, well: Sequence[Address]) -> int | None:
        fixed = [address.fit.rows for address in well if address.fit is not None and address.fit.rows is not None]
        return min([*fixed, *([self._config.max_batch_size] if self._config.max_batch_size else [])], default=None)

    async def _ask_part(
        self, images: Images, headers: dict[str, str], give_up: float
    ) -> tuple[Probabilities, str, int]:
        """Ask one address, and another or the same once more if that may help."""
        tried: list[Address] = []
        while True:
            well = await self._addresses.well(give_up - time.monotonic())
            address = min(well, key=lambda each: (tried.count(each), each.under_way))
            self._addresses.took(address)
            tried.append(address)
            try:
                scores, version = await self._ask_address(address, images, headers, give_up)
                return scores, version or UNKNOWN, len(tried)
            except CallError as err:
                if not err.retry or len(tried) > self._config.retries:
                    raise
                back_off_s = BACK_OFF_S * 2 ** (len(tried) - 1) * random.uniform(1, 2)
                if time.monotonic() + back_off_s >= give_up:
                    raise
            await asyncio.sleep(back_off_s)

    async def _ask_address(
        self, address: Address, images: Images, headers: dict[str, str], give_up: float
    ) -> tuple[Probabilities, str]:
        how = address.fit
        assert how is not None
        rows = len(images)
        sent: Any = images if how.as_sent else packed(_filled(cast(Pixels, images), how.rows), how, self._config)
        if how.as_sent and how.rows is not None and rows < how.rows:
            sent = [*images, *[images[-1]] * (how.rows - rows)]
        began = time.monotonic()
        address.under_way += 1
        try:
            answer, version = await address.server.infer(how, sent, headers, give_up - began)
            scores = probabilities(answer, len(sent), len(self._agreed.labels), self._config)[:rows]
        except (CallError, asyncio.CancelledError) as err:
            # A caller in a hurry, or one that leaves, is not the server's fault.
            had_time = time.monotonic() - began >= min(FAIR_S, self._config.timeout_ms / 1000)
            if isinstance(err, asyncio.CancelledError):
                if had_time and time.monotonic() >= give_up:
                    address.failed(Late("no answer in its time"))
            elif had_time or not isinstance(err, Late):
                address.failed(err)
            raise
        finally:
            address.under_way -= 1
        address.succeeded()
        return scores, version or how.version

    def _log(self, error: CallError) -> None:
        """Say what is wrong, not with every batch."""
        now = time.monotonic()
        if now >= self._logged + LOG_EVERY_S:
            self._logged = now
            logger.warning("member %r has no answer: %s: %s", self.name, type(error).__name__, error)


def _filled(pixels: Pixels, rows: int | None) -> Pixels:
    """As many images as a model of a fixed number takes."""
    if rows is None or len(pixels) == rows:
        return pixels
    return np.concatenate([pixels, np.zeros((rows - len(pixels), *pixels.shape[1:]), np.uint8)])


def _trace_parent(items: Sequence[Item], span: str) -> str:
    """The W3C `traceparent` of a call: in the trace of the first image that has a sampled one, our own span above."""
    parents = [item.trace_parent for item in items if item.error is None and item.trace_parent]
    sampled = [parent for parent in parents if int(parent[-2:], 16) & 1]
    first = next(iter(sampled or parents), f"00-{secrets.token_hex(16)}-{span}-00")
    return f"{first[:36]}{span}{first[52:]}"
