import asyncio

import pytest

from deployments.contract.errors import DeadlineExceeded, Overloaded, SlowBody
from deployments.ingress import arrivals
from deployments.ingress.admission import Admission
from deployments.ingress.arrivals import Arrivals
from deployments.ingress.settings import IngressSettings


def made(**settings):
    limits = IngressSettings(**settings)
    admission = Admission(lambda: limits)
    return Arrivals(admission, lambda: limits), admission


async def stall(room, timeout_s=60.0, began=None, sizes=()):
    """A body of which nothing more comes after these bytes."""
    async with room.arriving(timeout_s) as arrival:
        for size in sizes:
            arrival.grow(size)
        if began is not None:
            began.set()
        await asyncio.Event().wait()


async def test_a_body_that_does_not_arrive_in_its_time_gives_its_bytes_back():
    room, admission = made()
    with pytest.raises(DeadlineExceeded, match="did not arrive"):
        await stall(room, timeout_s=0.02, sizes=(10,))
    assert admission.size == 0


async def test_a_body_that_stands_still_is_told_its_pace(monkeypatch):
    monkeypatch.setattr(arrivals, "GRACE_S", 0.02)
    room, admission = made()
    with pytest.raises(SlowBody, match="1024 bytes a second"):
        await stall(room, sizes=(10,))
    assert admission.size == 0


async def test_a_body_has_the_longer_the_more_of_it_has_come(monkeypatch):
    monkeypatch.setattr(arrivals, "GRACE_S", 0.02)
    room, _ = made(min_body_rate=1024)
    begun = asyncio.Event()
    loop = asyncio.get_running_loop()
    task = asyncio.create_task(stall(room, began=begun, sizes=(1024, 9 * 1024)))
    await begun.wait()
    [arrival] = room._all
    assert arrival.limit.when() == pytest.approx(loop.time() + 10, abs=1)
    task.cancel()


async def test_when_too_many_arrive_the_oldest_gives_way(monkeypatch):
    monkeypatch.setattr(arrivals, "YOUNG_S", 0.0)
    room, _ = made(max_arriving=2)
    begun = [asyncio.Event(), asyncio.Event()]
    tasks = [asyncio.create_task(stall(room, began=event)) for event in begun]
    for event in begun:
        await event.wait()
    async with room.arriving(60):
        with pytest.raises(Overloaded, match="oldest"):
            await tasks[0]
        assert not tasks[1].done()
    tasks[1].cancel()


async def test_the_bytes_of_who_came_in_are_not_refused_for_want_of_places():
    room, admission = made(max_in_flight=8)
    async with room.arriving(60) as arrival:
        # Meanwhile the others fill every place: whether there is one is asked again when the body is whole.
        admission.images = 8
        arrival.grow(1000)
        assert admission.size == 1000


async def test_what_has_only_just_begun_does_not_give_way():
    room, _ = made(max_arriving=1)
    begun = asyncio.Event()
    task = asyncio.create_task(stall(room, began=begun))
    await begun.wait()
    with pytest.raises(Overloaded, match="1 requests are arriving"):
        async with room.arriving(60):
            pass
    task.cancel()
