"""A memory of what members said: an image that came before is not decoded and not asked of them again.

What is kept is each member's scores, not an answer: the combination, the label, `top_k` and the trace are made anew for
each request. So a change of weights or of the method holds for remembered images at once.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from msgspec.structs import replace

from deployments.contract.batch import Batch, Work
from deployments.contract.item import Cached, Item, Version
from deployments.contract.nodes import Node, Part, joined, parts
from deployments.contract.options import decisive
from deployments.contract.payload import Ballots
from graph.capabilities.cache.stores import Store

if TYPE_CHECKING:
    from graph.capabilities.cache.metrics import CacheMetrics

OPERATION = "cache"
# Of more bytes hashlib gives the interpreter to another thread, and the event loop waits until it has it back.
AT_ONCE = 2047


class Entry(msgspec.Struct, array_like=True, frozen=True):
    """What is remembered of an image.

    Attributes:
        made: when, seconds since the epoch.
        took_s: what decoding and members took for it, its share of the batch.
        image_size: see `Item`, as the next two.
        versions: likewise.
        asked: likewise.
        scores: each member's, float32, by name.
    """

    made: float
    took_s: float
    image_size: tuple[int, int] | None
    versions: dict[str, Version]
    asked: tuple[str, ...]
    scores: dict[str, bytes]


ENCODER = msgspec.msgpack.Encoder()
DECODER = msgspec.msgpack.Decoder(Entry)
Waiting = asyncio.Future[Entry | None]


class Cache:
    """Answers from its store what is there; of several that ask the same at once, one asks the members for all."""

    def __init__(
        self,
        node: Node[Sequence[bytes], Ballots],
        store: Store,
        identity: bytes,
        classes: int,
        counts: CacheMetrics,
        per_key: bool = False,
    ) -> None:
        """Set what is remembered.

        Args:
            node: from encoded images to what each member says of them.
            store: where entries are kept.
            identity: what decides scores besides the image: two that differ share nothing.
            classes: the number of scores of a member.
            counts: counts hits and misses.
            per_key: whether callers with different API keys share nothing.
        """
        self._node = node
        self._store = store
        self._identity = identity
        self._classes = classes
        self._counts = counts
        self._per_key = per_key
        self._under_way: dict[bytes, Waiting] = {}
        # Of each member that was asked, by whether its canary was, the version that answered last; what another one
        # said is forgotten.
        self._versions: dict[tuple[str, bool], Version] = {}

    async def __call__(self, batch: Batch[Sequence[bytes]]) -> Batch[Ballots]:
        """Encoded images to each member's scores, float32 [N,C] by name."""
        return await joined(self.parts(batch))

    async def parts(self, batch: Batch[Sequence[bytes]]) -> AsyncIterator[Part]:
        """The same, but what is remembered does not wait for what is asked."""
        work = Work(OPERATION, batch)
        live = work.batch.live
        keys = {p: self._key(image, work.batch.items[p]) for p, image in zip(live, work.payload, strict=True)}
        open_ = [p for p in live if work.batch.items[p].options.cache is None]
        contents = await self._store.look_up([keys[p] for p in open_])
        told = zip(open_, contents, strict=True)
        found = {p: entry for p, content in told if (entry := self._entry(content, work.batch.items[p].trials))}
        # Nothing is awaited until `_under_way` names the images that this batch asks for, so that no other asks, too.
        asks = [p for p in live if work.batch.items[p].options.cache is not None]
        followed: dict[int, Waiting] = {}
        leaders: dict[int, Waiting] = {}
        for p in open_:
            if p in found:
                continue
            if keys[p] in self._under_way:
                followed[p] = self._under_way[keys[p]]
            else:
                self._under_way[keys[p]] = leaders[p] = asyncio.get_running_loop().create_future()
                asks.append(p)
        after: dict[int, Entry] = {}
        try:
            noted = work.done(work.payload, attributes={"ensemble.cache.hits": len(found)})
            if failed := [p for p, item in enumerate(noted.items) if item.error is not None]:
                yield failed, Batch({}, tuple(noted.items[p] for p in failed))
            if found:
                yield _remembered(noted, found)
            async for part in self._ask(noted, sorted(asks), keys, leaders):
                yield part
            for p, waiting in followed.items():
                if (entry := await asyncio.shield(waiting)) is not None:
                    after[p] = entry
            if after:
                yield _remembered(noted, after)
            # What the one that asked for all failed on has not failed: it may have been out of time.
            async for part in self._ask(noted, [p for p in followed if p not in after], keys, {}):
                yield part
        finally:
            for p in list(leaders):
                self._tell(keys[p], leaders.pop(p), None)
            hits = found | after
            saved_s = sum(entry.took_s for entry in hits.values())
            self._counts.cache(len(hits), len(open_) - len(hits), len(live) - len(open_), saved_s)

    def knows(self, image: bytes, item: Item) -> bool:
        """Whether what members say of an image is in this process' memory, so that it need not wait for others."""
        return item.options.cache is None and self._store.has(self._key(image, item))

    def _key(self, image: bytes, item: Item) -> bytes:
        tried = "".join(f" {name}" for name in item.trials)
        # Names of members have no "=".
        owner = f" key={item.by.name}" if self._per_key else ""
        digest = hashlib.sha256(self._identity + decisive(item.options) + f"{tried}{owner}".encode() + b"\0")
        for start in range(0, len(image), AT_ONCE):
            digest.update(image[start : start + AT_ONCE])
        return b"ensemble:" + digest.digest()

    def _entry(self, content: bytes | None, trials: Sequence[str]) -> Entry | None:
        """What is remembered; None for nothing, and for what is not of our making."""
        if content is None:
            return None
        try:
            entry = DECODER.decode(content)
        except msgspec.MsgspecError:
            return None
        whole = entry.scores and all(len(scores) == 4 * self._classes for scores in entry.scores.values())
        current = all(self._versions.get((name, name in trials), v) == v for name, v in entry.versions.items())
        return entry if whole and current else None

    def _tell(self, key: bytes, waiting: Waiting, entry: Entry | None) -> None:
        """Tell those that wait for an image what members said of it; None if that can't be remembered."""
        del self._under_way[key]
        waiting.set_result(entry)

    async def _ask(
        self,
        batch: Batch[Sequence[bytes]],
        positions: Sequence[int],
        keys: Mapping[int, bytes],
        leaders: dict[int, Waiting],
    ) -> AsyncIterator[Part]:
        """Ask the members of some images, remember what they say, and tell those that wait for it."""
        if not positions:
            return
        took_s, left, began = 0.0, len(positions), time.perf_counter()
        async for places, answer in parts(self._node, batch.split(positions)):
            asked = [positions[place] for place in places]
            # Who was asked further shares the time of the stages before.
            took_s += (time.perf_counter() - began) / left
            left -= len(places)
            entries = _entries(answer, batch, asked, took_s)
            for p in asked:
                if (waiting := leaders.pop(p, None)) is not None:
                    self._tell(keys[p], waiting, entries.get(p))
            for p, entry in entries.items():
                trials = batch.items[p].trials
                self._versions.update({(name, name in trials): version for name, version in entry.versions.items()})
                if batch.items[p].options.cache != "no-store":
                    self._store.keep(keys[p], ENCODER.encode(entry))
            payload = answer.payload if isinstance(answer.payload, Mapping) else {}
            yield asked, Batch(payload, tuple(replace(item, cache=Cached(False)) for item in answer.items))
            began = time.perf_counter()


def _entries(
    answer: Batch[Ballots], asked: Batch[Sequence[bytes]], positions: Sequence[int], took_s: float
) -> dict[int, Entry]:
    """What to remember of an answer to some of the images that were asked.

    Only of those that no member and no canary failed on, and that the load did not shorten.
    """
    now = time.time()
    entries = {}
    for row, place in enumerate(answer.live):
        item = answer.items[place]
        if not item.missing and not item.eased and item.trials == asked.items[positions[place]].trials:
            said = {name: scores[row] for name, scores in answer.payload.items()}
            scores = {name: each.tobytes() for name, each in said.items() if not np.isnan(each[0])}
            entries[positions[place]] = Entry(now, took_s, item.image_size, dict(item.versions), item.asked, scores)
    return entries


def _remembered(batch: Batch[Any], entries: Mapping[int, Entry]) -> Part:
    """Images of a batch, by position, as if the members had just been asked."""
    now = time.time()
    names = dict.fromkeys(name for entry in entries.values() for name in entry.scores)
    length = max(len(scores) // 4 for entry in entries.values() for scores in entry.scores.values())
    payload = {name: np.full((len(entries), length), np.nan, np.float32) for name in names}
    for row, entry in enumerate(entries.values()):
        for name, scores in entry.scores.items():
            payload[name][row] = np.frombuffer(scores, np.float32)
    items = tuple(
        replace(
            batch.items[position],
            image_size=entry.image_size,
            versions=entry.versions,
            asked=entry.asked,
            cache=Cached(True, max(0.0, now - entry.made)),
        )
        for position, entry in entries.items()
    )
    return list(entries), Batch(payload, items)
