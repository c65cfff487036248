import asyncio

import pytest

from deployments.contract.caller import ANYONE, Caller
from deployments.contract.errors import DeadlineExceeded, EnsembleError, Overloaded, SlowBody
from deployments.contract.options import Options
from deployments.ingress import uploads
from deployments.ingress.admission import AdmissionController
from deployments.ingress.settings import IngressSettings


def made(**settings):
    return AdmissionController(IngressSettings(**settings))


async def stall(admission, timeout_ms=60_000, began=None, sizes=(), by=ANYONE):
    """A body of which nothing more comes after these bytes."""
    async with admission.arriving(Options(timeout_ms=timeout_ms), by) as upload:
        for size in sizes:
            admission.arrived(upload, size)
        if began is not None:
            began.set()
        await asyncio.Event().wait()


async def test_a_body_that_does_not_arrive_in_its_time_gives_its_bytes_back():
    admission = made()
    with pytest.raises(DeadlineExceeded, match="did not arrive"):
        await stall(admission, timeout_ms=20, sizes=(10,))
    assert admission.size == 0


async def test_a_body_that_stands_still_is_told_its_pace(monkeypatch):
    monkeypatch.setattr(uploads, "GRACE_S", 0.02)
    admission = made()
    with pytest.raises(SlowBody, match="1024 bytes a second"):
        await stall(admission, sizes=(10,))
    assert admission.size == 0


async def test_a_body_has_the_longer_the_more_of_it_has_come(monkeypatch):
    monkeypatch.setattr(uploads, "GRACE_S", 0.02)
    admission = made(min_body_rate=1024)
    begun = asyncio.Event()
    loop = asyncio.get_running_loop()
    task = asyncio.create_task(stall(admission, began=begun, sizes=(1024, 9 * 1024)))
    await begun.wait()
    [begun] = admission._uploads
    assert begun.limit.when() == pytest.approx(loop.time() + 10, abs=1)
    task.cancel()


async def test_when_too_many_arrive_the_oldest_gives_way(monkeypatch):
    monkeypatch.setattr(uploads, "YOUNG_S", 0.0)
    admission = made(max_arriving=2)
    begun = [asyncio.Event(), asyncio.Event()]
    tasks = [asyncio.create_task(stall(admission, began=event)) for event in begun]
    for event in begun:
        await event.wait()
    async with admission.arriving():
        with pytest.raises(Overloaded, match="oldest"):
            await tasks[0]
        assert not tasks[1].done()
    tasks[1].cancel()


async def standing(admission):
    """A body that has begun to arrive, and the task that waits for the rest of it."""
    begun = asyncio.Event()
    task = asyncio.create_task(stall(admission, began=begun))
    await begun.wait()
    [body] = admission._uploads
    return body, task


async def test_who_gives_way_does_not_stay_for_more_of_its_bytes(monkeypatch):
    monkeypatch.setattr(uploads, "YOUNG_S", 0.0)
    admission = made(max_arriving=1)
    body, task = await standing(admission)
    async with admission.arriving():
        # More of it was on its way when it gave way.
        with pytest.raises(Overloaded, match="oldest"):
            admission.arrived(body, 10)
        assert admission.size == 0
        with pytest.raises(Overloaded, match="oldest"):
            await asyncio.wait_for(task, 5)


async def test_who_gives_way_when_its_time_is_over_disturbs_nobody(monkeypatch):
    monkeypatch.setattr(uploads, "YOUNG_S", 0.0)
    admission = made(max_arriving=1)
    body, task = await standing(admission)
    body.limit.reschedule(0)
    # The loop has ended it, and its task has not run yet.
    while not body.limit.expired():
        await asyncio.sleep(0)
    async with admission.arriving():
        with pytest.raises(EnsembleError):
            await task


async def test_the_bytes_of_who_came_in_are_not_refused_for_want_of_places():
    admission = made(max_in_flight=8)
    async with admission.arriving() as upload:
        # Meanwhile the others fill every place: whether there is one is asked again when the body is whole.
        admission.images = 8
        admission.arrived(upload, 1000)
        assert admission.size == 1000


async def test_what_has_only_just_begun_does_not_give_way(monkeypatch):
    monkeypatch.setattr(uploads, "YOUNG_S", 60.0)
    admission = made(max_arriving=1)
    begun = asyncio.Event()
    task = asyncio.create_task(stall(admission, began=begun))
    await begun.wait()
    with pytest.raises(Overloaded, match="1 requests are arriving"):
        async with admission.arriving():
            pass
    task.cancel()


@pytest.mark.parametrize("crowd", [Caller(address="10.0.0.1"), Caller(name="crowd", address="10.0.0.2")])
async def test_the_slow_bodies_of_one_sender_take_no_place_of_another(crowd):
    """However young they are: a sender that begins anew all the time has no other ones."""
    admission, other = made(max_arriving=4), Caller(address="10.0.0.2")
    begun = [asyncio.Event() for _ in range(4)]
    tasks = [asyncio.create_task(stall(admission, began=event, by=crowd)) for event in begun]
    for event in begun:
        await event.wait()
    with pytest.raises(Overloaded, match="4 requests are arriving"):
        async with admission.arriving(by=crowd):
            pass
    async with admission.arriving(by=other), admission.arriving(by=other):
        for task in tasks[:2]:
            with pytest.raises(Overloaded, match="oldest"):
                await task
        assert not any(task.done() for task in tasks[2:])
        # Each has as many now.
        with pytest.raises(Overloaded, match="4 requests are arriving"):
            async with admission.arriving(by=other):
                pass
    for task in tasks:
        task.cancel()


CROWDS = {
    "two keys": (Caller(name="crowd", address="10.0.0.2"), Caller(name="other", address="10.0.0.2")),
    "two addresses": (Caller(address="10.0.0.1"), Caller(address="10.0.0.2")),
    "a network": (Caller(address="2001:db8::1"), Caller(address="2001:db8:1::1")),
}


async def begun(admission, by, *sizes):
    """A body that has begun to arrive, as a task."""
    event = asyncio.Event()
    task = asyncio.create_task(stall(admission, began=event, sizes=sizes, by=by))
    waiting = asyncio.create_task(event.wait())
    await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    return task


@pytest.mark.parametrize("is_first", [True, False], ids=["the other first", "the crowd first"])
@pytest.mark.parametrize(("crowd", "other"), CROWDS.values(), ids=CROWDS)
async def test_a_sender_that_begins_upload_after_upload_ends_its_own_alone(crowd, other, is_first, monkeypatch):
    monkeypatch.setattr(uploads, "YOUNG_S", 0.0)
    admission = made(max_arriving=8)
    victims = [await begun(admission, other) for _ in range(3 if is_first else 0)]
    # Each from another address of the network.
    several = [crowd._replace(address=crowd.address.replace("::1", f"::{n + 1}")) for n in range(30)]
    attackers = [await begun(admission, each) for each in several]
    victims += [await begun(admission, other) for _ in range(0 if is_first else 3)]
    attackers += [await begun(admission, each) for each in several]
    await asyncio.sleep(0)
    assert not any(task.done() for task in victims)
    assert [task.done() for task in attackers] == [True] * 55 + [False] * 5
    for task in (*victims, *attackers):
        task.cancel()
    await asyncio.gather(*victims, *attackers, return_exceptions=True)
    assert admission.size == 0


@pytest.mark.parametrize(("crowd", "other"), CROWDS.values(), ids=CROWDS)
async def test_the_bytes_of_one_sender_keep_no_other_out(crowd, other):
    admission = made(max_in_flight_bytes=10_000, max_request_bytes=10_000)
    attackers = [await begun(admission, crowd, 2_500) for _ in range(5)]
    # Its own bytes are refused beyond the limit.
    assert [task.done() for task in attackers] == [False] * 4 + [True]
    victims = [await begun(admission, other, 2_000) for _ in range(2)]
    admission.check(size=900, by=other)
    await asyncio.sleep(0)
    assert not any(task.done() for task in victims)
    assert [task.done() for task in attackers] == [True] * 2 + [False] * 2 + [True]
    for task in (*victims, *attackers):
        task.cancel()
    await asyncio.gather(*victims, *attackers, return_exceptions=True)
    assert admission.size == 0
