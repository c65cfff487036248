"""A process' CPU time is shared out over the work that was under way, and nothing of it is lost or counted twice."""

import asyncio
import threading
import time

import numpy as np
import pytest

from deployments.contract import cpu_accounting as metering
from deployments.contract.batch import Work
from deployments.contract.cpu_accounting import Meter
from deployments.contract.item import Item
from deployments.contract.payload import byte_size
from tests.batches import batch, notes


class Clocks:
    """The clocks of a process and of its event loop's thread, nanoseconds, and one that always goes on, seconds."""

    def __init__(self):
        self.process = self.loop = 0
        self.now = 0.0

    def process_time_ns(self):
        return self.process

    def thread_time_ns(self):
        return self.loop

    def monotonic(self):
        return self.now

    def run(self, loop=0, others=0):
        self.loop += loop
        self.process += loop + others


@pytest.fixture
def clocks(monkeypatch):
    clocks = Clocks()
    monkeypatch.setattr(metering, "time", clocks)
    return clocks


def test_the_loops_time_is_the_pieces_that_it_works_for_and_other_threads_is_shared_by_their_number(clocks):
    meter = Meter()
    owner = meter.begin(True, owner=True)
    first = meter.begin(True)
    clocks.run(loop=5)
    meter.leave(first, 1)
    clocks.run(loop=7, others=20)
    second = meter.begin(True)
    clocks.run(loop=2, others=3)
    meter.leave(second, 3)
    clocks.run(loop=1, others=40)
    meter.come_back(first, 1)
    clocks.run(loop=4, others=6)
    # The first has 5 and 4 of the loop's, 20 and 3 alone, and 1 of 4 threads; the loop left 7 and 1 for no piece.
    assert first.end() == 5 + 20 + 3 + 10 + 4
    clocks.run(loop=8)
    meter.come_back(second, 3)
    assert second.end() == 2 + 30 + 6
    assert meter.take_rest() == 7 + 1 + 8
    assert (meter.take_rest(), owner.end()) == (0, 0)


def test_without_an_owner_each_piece_that_ends_takes_the_rest(clocks):
    meter = Meter()
    first = meter.begin(True)
    meter.leave(first, 0)
    clocks.run(loop=3, others=2)
    meter.come_back(first, 0)
    assert first.end() == 5
    clocks.run(loop=10)
    second = meter.begin(True)
    clocks.run(loop=1)
    assert second.end() == 11


def test_what_comes_to_nothing_is_part_of_the_rest(clocks):
    meter = Meter()
    lost, other = meter.begin(True), meter.begin(True)
    clocks.run(loop=3)
    meter.leave(lost, 1)
    clocks.run(others=4)
    meter.come_back(lost, 1)
    del lost
    assert other.end() == 7


def test_a_long_pause_belongs_to_nothing_and_where_nobody_asks_no_clock_is_read(clocks):
    meter = Meter()
    meter.begin(True).end()
    clocks.run(loop=1)
    clocks.now += metering.PAUSE_S / 2
    meter.begin(False).end()
    # Not metered, but within the pause: it has taken what was before it.
    clocks.run(loop=2)
    clocks.now += metering.PAUSE_S
    clocks.process_time_ns = None
    assert meter.begin(False) is None
    meter.unmetered += 1
    del clocks.process_time_ns
    clocks.run(loop=100, others=100)
    metered = meter.begin(True)
    clocks.run(others=8)
    # What the other one's thread takes meanwhile is not this one's.
    assert metered.end() == 0
    meter.unmetered -= 1


def spin(seconds):
    """Use so much CPU time."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


async def test_works_of_many_batches_at_a_time_sum_to_the_process_own_meter():
    async def node(number):
        work = Work(f"node {number}", batch(np.zeros((2, 3), np.uint8), Item(metered=True), Item(metered=True)))
        spin(0.01)
        with work.elsewhere(1):
            await asyncio.to_thread(spin, 0.02)
        await asyncio.sleep(0)
        [note] = notes(work.done(np.zeros((2, 5), np.float32)))
        return note.attributes

    async def gives_up():
        work = Work("lost", batch(["x"], Item(metered=True)))
        spin(0.01)
        raise ValueError(work.start_ns)

    Work("first", batch(["x"], Item(metered=True))).done(["x"])
    before = time.process_time()
    with pytest.raises(ValueError, match="1"):
        await gives_up()
    noted = await asyncio.gather(*map(node, range(4)))
    used = (time.process_time() - before) * 1000
    assert [(each["ensemble.bytes_in"], each["ensemble.bytes_out"]) for each in noted] == [(6, 40)] * 4
    assert sum(each["ensemble.cpu_ms"] for each in noted) == pytest.approx(used, rel=0.05)


async def test_work_that_nobody_meters_notes_nothing_of_it():
    [note] = notes(Work("node", batch(["x"])).done(["x"]))
    assert note.attributes == {"ensemble.batch.size": 1}


def test_the_pieces_of_a_thread_that_is_busy_beside_them_are_theirs():
    """What a library's threads take is found by the process' clock, though nobody can ask those threads."""
    meter, stop = Meter(), threading.Event()
    piece = meter.begin(True)
    meter.leave(piece, 1)
    native = threading.Thread(target=lambda: [spin(0.05), stop.set()])
    native.start()
    native.join()
    meter.come_back(piece, 1)
    assert stop.is_set()
    assert piece.end() >= 45e6


def test_the_bytes_of_a_payload_are_known_unless_something_in_it_has_none():
    pixels = np.zeros((2, 3, 4), np.uint8)
    assert [byte_size(each) for each in (pixels, [b"ab", b"c"], {"a": pixels, "b": [b"xy"]}, [], ["a"], [b"a", 1])] == [
        24,
        3,
        26,
        0,
        None,
        None,
    ]
