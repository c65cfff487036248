import asyncio

import numpy as np
import pytest

from deployments.contract.batch import Batch, Work
from deployments.contract.errors import DeadlineExceeded, Overloaded
from deployments.contract.item import Item
from deployments.contract.options import Options
from deployments.ingress.ingress import Ingress
from deployments.ingress.settings import IngressSettings
from deployments.ingress.single_member import SingleMemberGraph
from tests.unit.deployments.ingress.test_ingress import OBSERVER, Graph, label

LABELS = ["dark", "bright"]


class Brightness:
    """A member that looks at the mean; `gate` holds it back."""

    def __init__(self):
        self.sizes = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self, batch):
        work = Work("predict brightness", batch)
        await self.gate.wait()
        self.sizes.append(len(work.payload))
        bright = work.payload.reshape(len(work.payload), -1).mean(1) / 255
        scores = np.stack([1 - bright, bright], 1).astype(np.float32)
        return work.done(scores, lambda _: {"versions": {"brightness": 3}})


def ingresses(**settings):
    member = Brightness()
    ensemble = Ingress.of_images(Graph(), IngressSettings(**settings), 2, OBSERVER)
    return ensemble, ensemble.of_pixels(SingleMemberGraph(member, (2, 3), LABELS)), member


def pixels(level):
    return bytes([level]) * 18


async def test_each_image_has_the_members_answer_and_its_version():
    _, door, member = ingresses()
    dark, bright = await door.classify([pixels(0), pixels(204)])
    assert [label(dark), label(bright)] == LABELS
    np.testing.assert_allclose(bright.probabilities, [0.2, 0.8], atol=1e-6)
    assert bright.classification.model_versions == {"brightness": 3}
    assert member.sizes == [2]


async def test_the_room_is_the_ensembles():
    ensemble, door, member = ingresses(max_in_flight=2)
    member.gate.clear()
    waiting = asyncio.ensure_future(door.classify([pixels(0), pixels(1)]))
    await asyncio.sleep(0)
    for other, image in ((ensemble, b"a"), (door, pixels(0))):
        with pytest.raises(Overloaded):
            await other.classify([image])
    member.gate.set()
    assert len(await waiting) == 2
    assert label((await ensemble.classify([b"a"]))[0]) == "a"


async def test_changed_settings_hold_for_members_too():
    ensemble, door, member = ingresses()
    ensemble.settings = IngressSettings(max_batch_size=1)
    await door.classify([pixels(0), pixels(1), pixels(2)])
    assert member.sizes == [1, 1, 1]


async def test_a_deadline_passes_while_a_member_works():
    _, door, member = ingresses()
    member.gate.clear()
    [outcome] = await door.classify([pixels(0)], Options(timeout_ms=20))
    assert isinstance(outcome, DeadlineExceeded)


async def test_an_image_whose_deadline_has_passed_is_no_row():
    node = SingleMemberGraph(Brightness(), (2, 3), LABELS)
    answered = await node(Batch([pixels(0), pixels(255)], (Item(deadline=1.0), Item())))
    assert isinstance(answered.items[0].error, DeadlineExceeded)
    assert [answer.classification.label for answer in answered.payload] == ["bright"]


async def test_pixels_are_no_header_whatever_they_begin_with():
    """As a bitmap's header these declare 196 million pixels, for which there is no room beside others."""
    ensemble, door, member = ingresses(max_in_flight_pixels=50_000_000)
    member.gate.clear()
    rows = [b"BM" + bytes(16), b"\xff\xd8" + bytes(16)]
    waiting = asyncio.ensure_future(door.classify(rows))
    await asyncio.sleep(0)
    assert (ensemble.admission.images, ensemble.admission.pixels) == (2, 0)
    member.gate.set()
    assert len(await waiting) == 2
    # In one batch: neither of them waits apart.
    assert member.sizes == [2]


async def test_a_body_of_pixels_takes_the_ensembles_room_as_it_arrives():
    ensemble, door, _ = ingresses(max_in_flight_bytes=2**20, max_request_bytes=2**20)
    async with door.admission.arriving() as arrival:
        door.admission.arrived(arrival, 2**20)
        with pytest.raises(Overloaded):
            ensemble.admission.check_size(1)
