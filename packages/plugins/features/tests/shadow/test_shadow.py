import asyncio
import time

import numpy as np
import pytest

from deployments.contract.batch import Batch, Work
from deployments.contract.errors import InferenceFailed, InvalidImage
from deployments.contract.item import Item
from deployments.pipeline.member_client import Member
from ensemble_features.record import PixelTap, Record, Trials
from ensemble_features.shadow.feature import replaced, shadows
from ensemble_features.shadow.flow import Pairs, Shadow, ShadowCounters, ShadowSettings
from graph.config import parse
from tests.batches import batch


class Names:
    """A shadow that names the class that a pixel is, and fails on some."""

    def __init__(self, fails=(), gate=None):
        self.fails, self.gate, self.seen = fails, gate, []

    async def __call__(self, batch):
        self.seen.append((batch.payload.tolist(), [item.deadline for item in batch.items]))
        if self.gate is not None:
            await self.gate.wait()
        work = Work("predict s", batch)
        well = [pixel for pixel in work.payload if pixel not in self.fails]
        errors = {row: InferenceFailed("s") for row, pixel in enumerate(work.payload) if pixel in self.fails}
        return work.done(np.eye(4, dtype=np.float32)[well], errors=errors)


class Breaks:
    async def __call__(self, batch):
        raise ConnectionError("x")


def shadow(node, share=1.0, replaces="a"):
    counted, settings = ShadowCounters(), ShadowSettings(share=share)
    return Shadow("s", Member(node, "small"), settings, replaces, counted, seed=0)


def copies(*said):
    """Copies of images; of each the pixel, what the ensemble said, and what the member `a` did."""
    return [
        (
            batch({"small": np.array([pixel], np.uint8)}, Item(deadline=time.time() + 9)),
            Record(index, {"a": own, "b": 0}),
        )
        for pixel, index, own in said
    ]


def waiting(count, ms=0.0):
    queued_ns = time.time_ns() - round(ms * 1e6)
    return [Item(queued_ns=queued_ns, position=position) for position in range(count)]


def results(shadow):
    return {result: images for (_, result), images in shadow._counters.images.counts.items()}


async def over(shadow):
    await asyncio.gather(shadow._work._task)


async def test_it_is_compared_with_the_ensemble_and_with_the_member_that_it_would_replace():
    node = Names()
    found = shadow(node)
    found.ask(copies((1, 1, 1), (2, 1, 2), (3, 3, 0)), None)
    await over(found)
    assert node.seen == [([1, 2, 3], [None] * 3)]
    told = found.figures()
    assert {other: (share.count, share.total) for other, share in told.agreed.items()} == {
        "ensemble": (2, 3),
        "a": (2, 3),
    }
    assert (told.replaces, told.failed, told.dropped) == ("a", 0, 0)
    assert results(found) == {"compared": 3}
    assert found._counters.predictions.counts == {
        ("s", "ensemble", True): 2,
        ("s", "ensemble", False): 1,
        ("s", "a", True): 2,
        ("s", "a", False): 1,
    }


async def test_without_a_member_to_replace_there_is_the_ensemble():
    found = shadow(Names(), replaces="")
    found.ask(copies((1, 1, 1)), None)
    await over(found)
    assert list(found.figures().agreed) == ["ensemble"]


@pytest.mark.parametrize(("node", "failed", "compared"), [(Breaks(), 2, 0), (Names(fails={2}), 1, 1)])
async def test_what_it_fails_on_is_counted_and_nothing_else(node, failed, compared):
    found = shadow(node)
    found.ask(copies((1, 1, 1), (2, 2, 2)), None)
    await over(found)
    assert found.figures().failed == failed
    assert results(found).get("compared", 0) == compared


async def test_one_that_hangs_is_given_up_and_meanwhile_copies_are_dropped():
    found = shadow(Names(gate=asyncio.Event()))
    found.ask(copies((1, 1, 1)), 20)
    assert found.draw(waiting(3)) == []
    found.ask(copies((1, 1, 1), (1, 1, 1)), 20)
    await over(found)
    assert (found.figures().failed, found.figures().dropped) == (1, 5)
    assert found.draw(waiting(3)) == [0, 1, 2]


def test_while_images_wait_long_none_is_drawn():
    found = shadow(Names())
    assert found.draw(waiting(2, ms=60_000)) == []
    assert results(found) == {"dropped": 2}
    assert found.draw(waiting(2)) == [0, 1]


def test_an_image_that_a_canary_answers_is_left_out():
    canarys, plain = Item(queued_ns=time.time_ns()).with_note(Trials(("b",))), *waiting(1)
    assert shadow(Names()).draw([canarys, plain, canarys]) == [1]


def test_a_share_is_drawn_and_nothing_of_what_warms_up_or_has_failed():
    found = shadow(Names(), share=0.1)
    drawn = sum(len(found.draw(waiting(1))) for _ in range(2000))
    assert 140 < drawn < 260
    assert shadow(Names()).draw([Item(), Item(queued_ns=time.time_ns(), error=InvalidImage("x"))]) == []
    found.settings = ShadowSettings(share=0)
    assert found.draw(waiting(100)) == []


async def test_where_the_label_is_known_it_tells_who_was_right():
    found = shadow(Names())
    sent = copies((1, 1, 1), (1, 2, 1), (1, 1, 2), (2, 2, 2))
    for _, seen in sent:
        seen.label = 1
    found.ask(sent, None)
    await over(found)
    assert found.figures().labelled == {"ensemble": Pairs(2, 1, 0, 1), "a": Pairs(2, 1, 0, 1)}


async def test_a_tap_keeps_the_pixels_of_those_that_are_wanted_and_gives_all_on():
    tap, other = PixelTap(["small"]), PixelTap(["large"])
    failed, wanted, gone = Item(error=InvalidImage("x"), position=1), Item(position=2), Item(position=3)
    for each in (failed, wanted, gone):
        tap.want(each)
    other.want(wanted)
    sent = Batch({"small": np.array([7, 8], np.uint8), "large": np.array([1, 2], np.uint8)}, (Item(), failed, wanted))
    assert await tap(sent) is sent
    assert await other(sent) is sent
    assert (tap.take(wanted).payload, other.take(wanted).payload) == ({"small": [8]}, {"large": [2]})
    assert [tap.take(each) for each in (failed, wanted, gone)] == [None] * 3


SHADOW = {"name": "s", "role": "shadow", "share": 0.1}


def test_a_shadow_is_compared_with_the_member_of_its_model_or_the_one_that_is_named():
    members = [{"name": "a", "model": "m"}, {"name": "b"}, {**SHADOW, "model": "m"}]
    config = parse({"members": members})
    assert ([m.name for m in config.voters], list(shadows(config)), config.weights) == (
        ["a", "b"],
        ["s"],
        {"a": 1, "b": 1},
    )
    assert replaced(config.members[2], config) == "a"
    named = parse({"members": [*members[:2], {**SHADOW, "replaces": "b"}]})
    assert replaced(named.members[2], named) == "b"
    other = named.members[1].model_copy(update={"model": "x"})
    assert replaced(other, parse({"members": [{"name": "a"}, {"name": "b"}, SHADOW]})) == ""
