"""A memory of the members' predictions: an image that came before is neither decoded nor given to the members again.

Each member's scores are kept, not an answer. The combination, the label, `top_k` and the trace are made anew for
each request, so a change of weights or of the method holds for remembered images at once.
"""

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from deployments.contract import clock
from deployments.contract.batch import Batch, Work
from deployments.contract.counting import TaggedCounter
from deployments.contract.item import Item, ItemNote
from deployments.contract.nodes import Flow, Node, Part, as_flow
from deployments.contract.options import PRESENTATION, Options
from deployments.contract.payload import MemberProbabilities
from ensemble_features.cache.stores import Store
from ensemble_serving.answer import CacheStatus, Version

OPERATION = "cache"
# hashlib releases the interpreter lock for more bytes, and the event loop then waits until it has the lock again.
HASHED_AT_ONCE = 2047


class Entry(msgspec.Struct, array_like=True, frozen=True):
    """A cached image; the fields that are not listed are the fields of `Item`.

    Attributes:
        made: when, seconds since the epoch.
        took_s: its share of the time that decoding and members took for its batch.
        scores: each member's, float32, by name.
    """

    made: float
    took_s: float
    image_size: tuple[int, int] | None
    versions: dict[str, Version]
    scores: dict[str, bytes]
    extras: dict[str, Any]
    warning: str = ""


ENCODER = msgspec.msgpack.Encoder(order="deterministic")
DECODER = msgspec.msgpack.Decoder(Entry)
# The options that change what members predict, with the values that requests have by default.
DECISIVE = {name: getattr(Options(), name) for name in Options.__struct_fields__ if name not in PRESENTATION}
Waiting = asyncio.Future[Entry | None]


def prediction_options(options: Options) -> bytes:
    """Return the options that change predictions, for the key of kept predictions; empty if all are defaults."""
    chosen = {name: value for name, default in DECISIVE.items() if (value := getattr(options, name)) != default}
    return ENCODER.encode(chosen) if chosen else b""


@dataclass
class Lookup:
    """The images of a batch, by position, as they are found in the cache.

    Attributes:
        keys: of every image that has not failed.
        looked: the images that were looked up; the others must not be answered from memory.
        found: cached images.
        followed: images that another batch is asking the members about.
        leaders: images that this batch asks about, and that other batches may wait for.
    """

    keys: Mapping[int, bytes]
    looked: Sequence[int]
    found: dict[int, Entry] = field(default_factory=dict)
    followed: dict[int, Waiting] = field(default_factory=dict)
    leaders: dict[int, Waiting] = field(default_factory=dict)

    @property
    def unknown(self) -> list[int]:
        """The images to ask the members about."""
        return [p for p in self.keys if p not in self.found and p not in self.followed]


class Cache(Flow):
    """Answers from its store what it remembers. Of batches with the same image at a time, one asks the members."""

    def __init__(
        self,
        node: Node[Sequence[bytes], MemberProbabilities],
        store: Store,
        identity: bytes,
        classes: int,
        saved: Callable[[float], None],
        per_key: bool = False,
        pinned: Mapping[str, Version] = MappingProxyType({}),
    ) -> None:
        """Create a cache.

        Args:
            node: predicts images that are not in the cache.
            store: keeps the entries.
            identity: caches whose identities differ share no entries.
            classes: the number of classes.
            saved: counts the seconds that were saved.
            per_key: whether each API key has entries of its own.
            pinned: by member, the version that it must answer by; entries of others are stale.
        """
        self._node, self._store, self._identity, self._classes = as_flow(node), store, identity, classes
        self._saved, self._per_key, self._pinned = saved, per_key, pinned
        self.images = TaggedCounter(
            "ensemble_cache_images",
            "Images by the cache's result: hit, miss, or passed, because the caller bypassed the cache.",
            "result",
        )
        self._in_flight: dict[bytes, Waiting] = {}
        # By member, and by the variant of it that was asked, the version that answered last; others' entries are stale.
        self._versions: dict[tuple[str, str], Version] = {}

    async def parts(self, batch: Batch[Sequence[bytes]]) -> AsyncIterator[Part]:
        """Turn encoded images into each member's scores, float32 [N,C] by name.

        Cached images don't wait for images that the members predict.
        """
        work = Work(OPERATION, batch)
        lookup = await self._look_up(work)
        later: dict[int, Entry] = {}
        try:
            noted = work.done(work.payload, attributes={"ensemble.cache.hits": len(lookup.found)})
            if failed := [p for p, item in enumerate(noted.items) if item.error is not None]:
                yield failed, Batch({}, tuple(noted.items[p] for p in failed))
            if lookup.found:
                yield _remembered(noted, lookup.found)
            async for part in self._ask(noted, lookup.unknown, lookup):
                yield part
            for p, waiting in lookup.followed.items():
                if (entry := await asyncio.shield(waiting)) is not None:
                    later[p] = entry
            if later:
                yield _remembered(noted, later)
            # Where the batch that asked has no answer, this one may: the other's deadline may have passed.
            async for part in self._ask(noted, [p for p in lookup.followed if p not in later], lookup):
                yield part
        finally:
            for p in list(lookup.leaders):
                self._share(lookup, p, None)
            hits = lookup.found | later
            self.images.add("hit", count=len(hits))
            self.images.add("miss", count=len(lookup.looked) - len(hits))
            self.images.add("passed", count=len(lookup.keys) - len(lookup.looked))
            if (saved_s := sum(entry.took_s for entry in hits.values())) > 0:
                self._saved(saved_s)

    def knows(self, image: bytes, item: Item) -> bool:
        """Tell whether an image's predictions are in this process' memory, so that it need not wait for others."""
        return item.options.cache is None and self._store.has(self._key(image, item))

    async def _look_up(self, work: Work[Sequence[bytes]]) -> Lookup:
        items = work.batch.items
        keys = {p: self._key(image, items[p]) for p, image in zip(work.batch.live, work.payload, strict=True)}
        lookup = Lookup(keys, [p for p in keys if items[p].options.cache is None])
        with work.elsewhere():
            contents = await self._store.look_up([keys[p] for p in lookup.looked])
        # Nothing is awaited until `_in_flight` has the images that this batch asks about, so that no other asks, too.
        entries = [self._entry(content, items[p]) for p, content in zip(lookup.looked, contents, strict=True)]
        for p, entry in zip(lookup.looked, entries, strict=True):
            if entry is not None:
                lookup.found[p] = entry
            elif keys[p] in self._in_flight:
                lookup.followed[p] = self._in_flight[keys[p]]
            else:
                self._in_flight[keys[p]] = lookup.leaders[p] = asyncio.get_running_loop().create_future()
        return lookup

    def _key(self, image: bytes, item: Item) -> bytes:
        deciding = ENCODER.encode(notes) if (notes := item.deciding) else b""
        # Names of members have no "=".
        owner = f" key={item.caller.name}" if self._per_key else ""
        digest = hashlib.sha256(self._identity + prediction_options(item.options) + deciding + owner.encode() + b"\0")
        for start in range(0, len(image), HASHED_AT_ONCE):
            digest.update(image[start : start + HASHED_AT_ONCE])
        return b"ensemble:" + digest.digest()

    def _entry(self, content: bytes | None, item: Item) -> Entry | None:
        """Return the entry in a store's content; None if there is none, or if it is stale or not made by this code."""
        if content is None:
            return None
        try:
            entry = DECODER.decode(content)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return None
        whole = entry.scores and all(len(scores) == 4 * self._classes for scores in entry.scores.values())
        return entry if whole and all(v == self._current(item, name, v) for name, v in entry.versions.items()) else None

    def _current(self, item: Item, member: str, default: Version) -> Version:
        """Return the version that a member answers an image by, as far as it is known."""
        return self._pinned.get(member) or self._versions.get((member, _variant(item, member)), default)

    def _share(self, lookup: Lookup, p: int, entry: Entry | None) -> None:
        """Give an image's entry to the batches that wait for it; None if it can't be remembered."""
        del self._in_flight[lookup.keys[p]]
        lookup.leaders.pop(p).set_result(entry)

    async def _ask(
        self, batch: Batch[Sequence[bytes]], positions: Sequence[int], lookup: Lookup
    ) -> AsyncIterator[Part]:
        """Ask the members about some images, remember their predictions, and share them."""
        if not positions:
            return
        took_s, left, began = 0.0, len(positions), time.perf_counter()
        async for places, answer in self._node.parts(batch.split(positions)):
            asked = [positions[place] for place in places]
            # An image that went through several stages has its share of each of them.
            took_s += (time.perf_counter() - began) / left
            left -= len(places)
            entries = _entries(answer, batch, asked, took_s)
            for p in asked:
                if p in lookup.leaders:
                    self._share(lookup, p, entries.get(p))
            for p, entry in entries.items():
                asked_of = batch.items[p]
                self._versions.update({(name, _variant(asked_of, name)): v for name, v in entry.versions.items()})
                if batch.items[p].options.cache != "no-store":
                    self._store.keep(lookup.keys[p], ENCODER.encode(entry))
            payload = answer.payload if isinstance(answer.payload, Mapping) else {}
            yield asked, Batch(payload, tuple(_with_status(item, CacheStatus(False)) for item in answer.items))
            began = time.perf_counter()


def _variant(item: Item, member: str) -> str:
    """Name the variant of a member that is asked about an image."""
    return " ".join(variant for note in item.deciding.values() if (variant := note.variant(member)))


def _with_status(item: Item, status: CacheStatus) -> Item:
    return replace(item, extras={**item.extras, "cache": status})


def _entries(
    answer: Batch[MemberProbabilities], sent: Batch[Sequence[bytes]], positions: Sequence[int], took_s: float
) -> dict[int, Entry]:
    """Make the entries of the answer to some images of a batch, by position.

    Images that a member or a canary failed on, or that the load has cut short, are not remembered.
    """
    now = clock.now()
    entries = {}
    for row, place in enumerate(answer.live):
        item = answer.items[place]
        is_lasting = all(note.is_lasting for note in item.notes.values() if isinstance(note, ItemNote))
        if not item.missing and is_lasting and item.deciding == sent.items[positions[place]].deciding:
            scores = {name: rows[row].tobytes() for name, rows in answer.payload.items() if not np.isnan(rows[row][0])}
            entries[positions[place]] = Entry(
                now,
                took_s,
                item.image_size,
                dict(item.versions),
                scores,
                dict(item.extras),
                item.warning,
            )
    return entries


def _remembered(batch: Batch[Any], entries: Mapping[int, Entry]) -> Part:
    """Return the entries' images, by position, as if the members had just answered them."""
    now = clock.now()
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
            warning=entry.warning,
            extras={**entry.extras, "cache": CacheStatus(True, max(0.0, now - entry.made))},
        )
        for position, entry in entries.items()
    )
    return list(entries), Batch(payload, items)
