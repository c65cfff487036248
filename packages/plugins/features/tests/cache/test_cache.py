import asyncio
import logging
import time
from types import SimpleNamespace

import numpy as np
import pytest
from msgspec.structs import replace
from pydantic import ValidationError

from deployments.combiner import Combiner, CombinerSettings
from deployments.contract.batch import Batch, Work
from deployments.contract.caller import Caller
from deployments.contract.errors import InferenceFailed, InvalidImage
from deployments.contract.item import Item, ItemNote
from deployments.contract.nodes import Flow
from deployments.contract.options import Options
from ensemble_features.cache.flow import DECODER, Cache
from ensemble_features.cache.stores import CacheSettings, Memory
from ensemble_features.cascade.flow import LoadShed
from ensemble_features.record import Trials
from ensemble_serving.answer import CacheStatus
from tests.batches import batch, errors, notes


class Other(ItemNote, frozen=True):
    """A feature's note."""


class Members:
    """Says of an image what its first byte is; of some it fails, of some a member is missing, some it waits for."""

    def __init__(self, fails=(), misses=(), waits=(), load_shed=()):
        self.fails, self.misses, self.waits, self.load_shed = fails, misses, waits, load_shed
        self.seen, self.version = [], 1
        self.gate = asyncio.Event()

    async def __call__(self, batch):
        self.seen.append(list(batch.payload))
        if set(batch.payload) & set(self.waits):
            await self.gate.wait()
        work = Work("predict", batch)
        broken = {row: InferenceFailed("x") for row, image in enumerate(work.payload) if image in self.fails}
        well = [image for image in work.payload if image not in self.fails]
        share = np.array([image[0] / 256 for image in well], np.float32)
        scores = {
            "a": np.stack([share, 1 - share], axis=1),
            "b": np.array([[np.nan if image in self.misses else 0.5] * 2 for image in well], np.float32).reshape(-1, 2),
        }
        missed = [{"b": "internal"} if image in self.misses else {} for image in well]
        same = {"image_size": (3, 2), "versions": {"a": self.version, "b": "x"}}
        done = work.done(scores, lambda row: {**same, "missing": missed[row]}, errors=broken)
        notes = iter([LoadShed() if image in self.load_shed else Other() for image in well])
        items = [item if item.error else item.with_note(next(notes), asked=("a", "b")) for item in done.items]
        return Batch(done.payload, tuple(items))


def counted(flow):
    """The images that were hits, misses and passed."""
    return tuple(flow.images.counts[(result,)] for result in ("hit", "miss", "passed"))


def cache(members, identity=b"", store=None, classes=2, saved=lambda _: None, **more):
    store = Memory(10**6, 60) if store is None else store
    return Cache(members, store, identity, classes, saved, **more)


def asking(*images, **options):
    return batch(list(images), *[Item(options=Options(**options))] * len(images))


def told(batch):
    return [(known := item.extras.get("cache")) and known.hit for item in batch.items]


async def test_an_image_that_came_before_is_not_asked_of_the_members_again():
    members = Members()
    flow = cache(members)
    first = await flow(asking(b"1", b"2"))
    second = await flow(asking(b"3", b"2", b"1"))
    assert members.seen == [[b"1", b"2"], [b"3"]]
    assert (told(first), told(second)) == ([False, False], [False, True, True])
    for name in ("a", "b"):
        np.testing.assert_array_equal(second.payload[name][[2, 1]], first.payload[name])
    assert [(i.image_size, dict(i.versions), tuple(i.extras["asked"])) for i in second.items] == [
        ((3, 2), {"a": 1, "b": "x"}, ("a", "b"))
    ] * 3
    # What another version of a feature noted would not be read.
    assert [i.note(Other) is None for i in second.items] == [False, True, True]
    assert first.items[0].extras["cache"] == CacheStatus(False)
    assert second.items[1].extras["cache"].age_s >= 0
    assert counted(flow) == (2, 3, 0)
    assert [note.node for note in notes(second)] == ["cache", "predict"]
    assert notes(second)[0].attributes["ensemble.cache.hits"] == 2


async def test_what_decides_scores_keeps_entries_apart():
    members, store = Members(), Memory(10**6, 60)
    for identity in (b"1", b"2", b"1"):
        await cache(members, identity, store)(asking(b"1"))
    await cache(members, b"1", store)(asking(b"1", quality="full"))
    assert members.seen == [[b"1"]] * 3


async def test_what_a_version_said_is_forgotten_once_another_answers():
    members = Members()
    flow = cache(members)
    await flow(asking(b"1", b"2"))
    members.version = 2
    await flow(asking(b"3"))
    again = await flow(asking(b"1", b"3"))
    assert told(again) == [False, True]
    assert [item.versions["a"] for item in again.items] == [2, 2]


async def test_what_other_versions_said_is_not_told_once_an_operator_loaded_one():
    members, loaded = Members(), {}
    flow = cache(members, pinned=loaded)
    await flow(asking(b"1"))
    loaded["a"] = 2
    # The member may get to know it later, and what it says until then is not told again.
    assert told(await flow(asking(b"1"))) == [False]
    members.version = 2
    assert told(await flow(asking(b"1"))) == [False]
    assert told(await flow(asking(b"1"))) == [True]
    # Back to the first version, whose entry was replaced.
    loaded["a"] = members.version = 1
    assert told(await flow(asking(b"1"))) == [False]


async def test_the_same_image_twice_in_a_batch_is_asked_once():
    members = Members()
    answer = await cache(members)(asking(b"1", b"2", b"1"))
    assert members.seen == [[b"1", b"2"]]
    assert told(answer) == [False, False, True]
    np.testing.assert_array_equal(answer.payload["a"][2], answer.payload["a"][0])


async def test_of_batches_that_ask_the_same_at_once_one_asks_the_members():
    members = Members(waits=(b"1",))
    flow = cache(members)
    first = asyncio.create_task(flow(asking(b"1")))
    while not members.seen:
        await asyncio.sleep(0)
    others = [asyncio.create_task(flow(asking(b"1", b"2"))) for _ in range(2)]
    while len(members.seen) < 2:
        await asyncio.sleep(0)
    members.gate.set()
    answers = await asyncio.gather(first, *others)
    assert members.seen == [[b"1"], [b"2"]]
    assert [told(answer) for answer in answers] == [[False], [True, False], [True, True]]
    assert flow._in_flight == {}


async def test_where_the_one_that_asks_for_all_leaves_or_fails_the_others_ask_themselves():
    members = Members(waits=(b"1",))
    flow = cache(members)
    first = asyncio.create_task(flow(asking(b"1")))
    while not members.seen:
        await asyncio.sleep(0)
    second = asyncio.create_task(flow(asking(b"1")))
    await asyncio.sleep(0)
    first.cancel()
    members.gate.set()
    answer = await second
    assert (told(answer), errors(answer)) == ([False], {})
    assert members.seen == [[b"1"]] * 2
    assert flow._in_flight == {}


async def test_one_that_waits_for_another_may_leave():
    members = Members(waits=(b"1",))
    flow = cache(members)
    first, second = (asyncio.create_task(flow(asking(b"1"))) for _ in range(2))
    while not members.seen:
        await asyncio.sleep(0)
    second.cancel()
    members.gate.set()
    assert told(await first) == [False]
    assert (await asyncio.gather(second, return_exceptions=True))[0].__class__ is asyncio.CancelledError


async def test_only_whole_successes_are_remembered():
    members = Members(fails=(b"1",), misses=(b"2",))
    flow = cache(members)
    for _ in range(2):
        answer = await flow(asking(b"1", b"2", b"3"))
    assert members.seen == [[b"1", b"2", b"3"], [b"1", b"2"]]
    assert [error.code for error in errors(answer).values()] == ["inference_failed"]
    assert dict(answer.items[1].missing) == {"b": "internal"}
    assert np.isnan(answer.payload["b"][0]).all()
    assert told(answer)[1:] == [False, True]


async def test_what_the_load_shortened_is_not_remembered():
    members = Members(load_shed=(b"1",))
    flow = cache(members)
    for _ in range(2):
        assert (await flow(asking(b"1"))).items[0].note(LoadShed)
    assert members.seen == [[b"1"]] * 2


async def test_what_failed_before_is_not_looked_at():
    members = Members()
    answer = await cache(members)(batch([b"1"], Item(error=InvalidImage("x")), Item()))
    assert members.seen == [[b"1"]]
    assert list(errors(answer)) == [0]
    assert answer.payload["a"].shape == (1, 2)


async def test_no_cache_asks_anew_and_remembers_and_no_store_does_not():
    members = Members()
    flow = cache(members)
    await flow(asking(b"1", cache="no-store"))
    assert told(await flow(asking(b"1", cache="no-cache"))) == [False]
    assert told(await flow(asking(b"1", cache="no-cache"))) == [False]
    assert told(await flow(asking(b"1"))) == [True]
    assert len(members.seen) == 3
    assert counted(flow) == (1, 0, 3)


async def test_it_knows_what_it_remembers_unless_the_caller_wants_it_anew():
    flow = cache(Members())
    item = Item()
    assert not flow.knows(b"1", item)
    await flow(asking(b"1"))
    assert flow.knows(b"1", item)
    assert not flow.knows(b"2", item)
    assert not flow.knows(b"1", Item(options=Options(cache="no-cache")))
    assert not flow.knows(b"1", Item(options=Options(quality="full")))


async def test_a_changed_weight_holds_for_what_is_remembered():
    flow = cache(Members())
    combiner = Combiner(CombinerSettings(), {"a": 1.0, "b": 1.0})
    await flow(asking(b"\x40"))
    combiner.settings = CombinerSettings(weights={"a": 1.0, "b": 0.0})
    again = await combiner(await flow(asking(b"\x40")))
    np.testing.assert_allclose(again.payload, [[0.25, 0.75]])
    assert list(again.items[0].predictions) == ["a", "b"]


@pytest.mark.parametrize("content", [b"", b"\x93", b"\x81\xa1a\x01", "short"])
async def test_an_entry_that_is_not_of_our_making_is_a_miss(content):
    class Broken(Memory):
        async def look_up(self, keys):
            return [short if content == "short" else content for _ in keys]

    members, good = Members(), Memory(10**6, 60)
    await cache(members, store=good)(asking(b"1"))
    [(_, short)] = good._entries.values()
    # Of another number of classes.
    assert told(await cache(members, store=Broken(10**6, 60), classes=3)(asking(b"1"))) == [False]


async def test_nothing_is_left_where_everything_failed():
    answer = await cache(Members(fails=(b"1",)))(asking(b"1"))
    assert (answer.live, list(errors(answer))) == ([], [0])


def test_sizes_are_written_as_people_do_and_bounded():
    assert CacheSettings.model_validate({"max_bytes": "64MiB"}).max_bytes == 64 * 1024 * 1024
    for wrong in ({"max_bytes": "1KiB"}, {"ttl_s": 0}, {"redis": "http://x"}):
        with pytest.raises(ValidationError):
            CacheSettings.model_validate(wrong)


async def test_a_batch_of_nothing_but_hits_asks_nobody(caplog):
    members = Members()
    flow = cache(members)
    await flow(asking(b"1"))
    with caplog.at_level(logging.WARNING):
        answer = await flow(asking(b"1", b"1"))
    assert isinstance(answer, Batch)
    assert (told(answer), members.seen) == ([True, True], [[b"1"]])


class Versions(Members):
    """Members of which `a` has a canary, which fails on some images."""

    fails_tried = ()

    async def __call__(self, batch):
        answer = await super().__call__(batch)
        pairs = zip(answer.items, batch.payload, strict=True)
        left = [() if image in self.fails_tried else Trials.of(item) for item, image in pairs]
        versions = [replace(i, versions={"a": 1 + bool(t)}) for i, t in zip(answer.items, left, strict=True)]
        items = [i.with_note(Trials(t)) if i.note(Trials) else i for i, t in zip(versions, left, strict=True)]
        return Batch(answer.payload, tuple(items))


async def test_what_each_version_said_is_remembered_apart():
    members = Versions()
    flow = cache(members)
    tried = Item().with_note(Trials(("a",)))
    for _ in range(2):
        answer = await flow(batch([b"1", b"1"], Item(), tried))
    assert members.seen == [[b"1", b"1"]]
    assert [item.versions["a"] for item in answer.items] == [1, 2]
    assert told(answer) == [True, True]


async def test_what_a_canary_failed_on_is_not_remembered_as_its_answer():
    members = Versions()
    members.fails_tried = (b"1",)
    flow = cache(members)
    for _ in range(2):
        assert told(await flow(batch([b"1"], Item().with_note(Trials(("a",)))))) == [False]
    # Nor is the stable version taken for the canary's new one, which would forget what that said.
    members.fails_tried = ()
    await flow(batch([b"2"], Item().with_note(Trials(("a",)))))
    members.fails_tried = (b"1",)
    await flow(batch([b"1"], Item().with_note(Trials(("a",)))))
    assert told(await flow(batch([b"2"], Item().with_note(Trials(("a",)))))) == [True]


async def test_what_is_remembered_does_not_wait_for_what_is_asked_nor_an_early_exit_for_the_others():
    class Stages(Members, Flow):
        """Answers its second stage when it is let."""

        let = asyncio.Event()

        async def parts(self, batch):
            for number, position in enumerate(range(len(batch.items))):
                if number:
                    await self.let.wait()
                yield [position], await self(batch.split([position]))

    members = Stages()
    flow, left = cache(members), []
    await flow(asking(b"0"))

    async def take():
        async for positions, part in flow.parts(asking(b"1", b"0", b"2")):
            left.append((list(positions), told(part)))

    first = asyncio.create_task(take())
    while len(left) < 2:
        await asyncio.sleep(0)
    assert left == [([1], [True]), ([0], [False])]
    # Another that asks for the early exit has it without the second stage.
    assert told(await flow(asking(b"1"))) == [True]
    second = asyncio.create_task(flow(asking(b"2")))
    await asyncio.sleep(0)
    members.let.set()
    await first
    assert (left[2:], told(await second)) == ([([2], [False])], [True])


async def test_who_takes_no_more_parts_leaves_nobody_waiting():
    members = Members()
    flow = cache(members)
    await flow(asking(b"0"))
    parts = flow.parts(asking(b"0", b"1"))
    await anext(parts)
    follower = asyncio.create_task(flow(asking(b"1")))
    await asyncio.sleep(0)
    await parts.aclose()
    assert told(await follower) == [False]


async def test_what_a_part_took_is_counted_without_what_others_did_meanwhile(monkeypatch):
    clock, took = [0.0], []
    monkeypatch.setattr(
        "ensemble_features.cache.flow.time", SimpleNamespace(time=time.time, perf_counter=lambda: clock[0])
    )

    class Kept(Memory):
        def keep(self, key, content):
            took.append(DECODER.decode(content).took_s)

    class Stages(Members, Flow):
        async def parts(self, batch):
            clock[0] += 4.0
            yield [0, 1], await self(batch.split([0, 1]))
            clock[0] += 1.0
            yield [2, 3], await self(batch.split([2, 3]))

    async for _ in cache(Stages(), store=Kept(10**6, 60)).parts(asking(b"0", b"1", b"2", b"3")):
        clock[0] += 100
    # Of the first five seconds the first four are everyone's.
    assert took == [1.0, 1.0, 1.5, 1.5]


async def test_an_entry_that_this_code_has_not_made_is_a_miss_and_holds_nobody_up():
    made = []

    class Foreign(Memory):
        async def look_up(self, keys):
            found = await super().look_up(keys)
            made.extend(content for content in found if content is not None)
            return [content and content.replace(b"\xa1b", b"\xa1\xff") for content in found]

    members = Members()
    flow = cache(members, store=Foreign(10**6, 60))
    await flow(asking(b"2"))
    await flow(asking(b"1", b"2"))
    await flow(asking(b"1"))
    assert members.seen == [[b"2"], [b"1", b"2"], [b"1"]]
    assert b"\xa1b" in made[0]


async def test_what_was_remembered_counts_though_the_rest_of_the_batch_is_given_up():
    members = Members(waits=[b"1"])
    flow = cache(members)
    await flow(asking(b"0"))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(flow(asking(b"0", b"1")), 0.01)
    assert counted(flow) == (1, 2, 0)


def asked_by(key, image=b"1"):
    return batch([image], Item(caller=Caller(name=key)))


async def test_each_key_has_entries_of_its_own_where_that_is_set():
    members, store = Members(), Memory(10**6, 60)
    common = cache(members, store=store)
    assert [told(await common(asked_by(key))) for key in ("a", "b")] == [[False], [True]]
    apart = cache(members, store=store, per_key=True)
    for hit in (False, True):
        assert [told(await apart(asked_by(key))) for key in ("a", "b", "")] == [[hit]] * 3
        assert apart.knows(b"1", Item(caller=Caller(name="a")))
        assert not apart.knows(b"1", Item(caller=Caller(name="c")))


async def test_an_image_that_another_key_asks_for_just_now_is_not_waited_for_where_each_has_its_own():
    members = Members(waits=(b"1",))
    flow = cache(members, per_key=True)
    both = [asyncio.create_task(flow(asked_by(key))) for key in ("a", "b")]
    while len(members.seen) < 2:
        await asyncio.sleep(0)
    members.gate.set()
    assert [told(answer) for answer in await asyncio.gather(*both)] == [[False], [False]]
