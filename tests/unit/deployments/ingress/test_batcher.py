import asyncio
import time
from contextvars import ContextVar

import pytest

from deployments.ingress.queue import Batcher, Queued
from deployments.ingress.settings import IngressSettings


class Door:
    """A batcher of anything, which `size` and `turn` make images of."""

    def __init__(self, run, size, settings, turn=lambda _: 0):
        def execute(queued):
            return run([each.image for each in queued])

        self._size, self._turn = size, turn
        self._batcher = Batcher(execute, settings)

    @property
    def waiting(self):
        return self._batcher.waiting

    def submit(self, item):
        return self._batcher.submit(Queued(item, None, None, 0, self._size(item), self._turn(item)))


class Recorder:
    """Doubles each item, notes each batch, and waits for `gate`."""

    def __init__(self):
        self.batches = []
        self.gate = asyncio.Event()

    async def __call__(self, items):
        self.batches.append(list(items))
        await self.gate.wait()
        yield range(len(items)), [item * 2 for item in items]


def batcher(**settings):
    recorder, limits = Recorder(), IngressSettings(**settings)
    return Door(recorder, lambda item: item, lambda: limits), recorder


async def settle():
    await asyncio.sleep(0.02)


async def test_a_lone_item_leaves_at_once():
    door, recorder = batcher()
    recorder.gate.set()
    assert await asyncio.wait_for(door.submit(3), 1) == 6


async def test_what_arrives_together_leaves_together_and_in_order():
    door, recorder = batcher(max_batch_size=4)
    recorder.gate.set()
    assert await asyncio.gather(*(door.submit(item) for item in range(10))) == [item * 2 for item in range(10)]
    assert recorder.batches == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


async def test_items_leave_by_their_turns():
    recorder, limits = Recorder(), IngressSettings(max_batch_size=3, max_concurrent_batches=1)
    later = time.time_ns() + 10**12
    door = Door(recorder, lambda item: 1, lambda: limits, lambda item: item % 10 if item < 100 else later + item)
    recorder.gate.set()
    # The last two are not due: they leave, but not with the one before them.
    await asyncio.gather(*(door.submit(item) for item in (19, 29, 39, 101, 15, 5, 25, 100, 11)))
    assert recorder.batches == [[19, 29, 39], [11, 15, 5], [25], [100, 101]]


async def test_what_arrives_while_the_graph_is_busy_leaves_together():
    door, recorder = batcher(max_concurrent_batches=1)
    futures = [door.submit(1)]
    await settle()
    for item in (2, 3, 4):
        futures.append(door.submit(item))
        await settle()
    assert recorder.batches == [[1]]
    recorder.gate.set()
    assert await asyncio.gather(*futures) == [2, 4, 6, 8]
    assert recorder.batches == [[1], [2, 3, 4]]


async def test_a_batch_is_bounded_in_bytes_but_takes_one_item_of_any_size():
    door, recorder = batcher(max_batch_bytes=1024, max_concurrent_batches=4)
    recorder.gate.set()
    await asyncio.gather(*(door.submit(size) for size in (500, 500, 500, 5000, 1)))
    assert recorder.batches == [[500, 500], [500], [5000], [1]]


async def test_an_idle_graph_waits_for_more_if_told_to():
    door, recorder = batcher(batch_wait_ms=200)
    recorder.gate.set()
    first = door.submit(1)
    await settle()
    second = door.submit(2)
    assert recorder.batches == []
    assert await asyncio.gather(first, second) == [2, 4]
    assert recorder.batches == [[1, 2]]


async def test_a_full_batch_does_not_wait():
    door, recorder = batcher(batch_wait_ms=10_000, max_batch_size=2)
    recorder.gate.set()
    assert await asyncio.wait_for(asyncio.gather(door.submit(1), door.submit(2)), 1) == [2, 4]


async def test_cancelled_items_do_not_travel():
    door, recorder = batcher(max_concurrent_batches=1)
    first = door.submit(1)
    await settle()
    second, third = door.submit(2), door.submit(3)
    second.cancel()
    recorder.gate.set()
    assert await asyncio.gather(first, third) == [2, 6]
    assert recorder.batches == [[1], [3]]


async def test_a_failure_reaches_every_caller_and_the_next_batch_goes_on():
    async def fail(items):
        if 1 in items:
            raise RuntimeError("broken")
        yield range(len(items)), items

    door = Door(fail, lambda _: 1, lambda: IngressSettings(max_batch_size=2, max_concurrent_batches=1))
    outcomes = await asyncio.gather(*(door.submit(item) for item in (0, 1, 2)), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [RuntimeError, RuntimeError, int]


async def test_a_result_does_not_wait_for_the_others_of_its_batch_and_a_failure_takes_no_result_back():
    gate = asyncio.Event()

    async def run(items):
        yield [2, 0], [items[2], items[0]]
        await gate.wait()
        raise RuntimeError("broken")

    door = Door(run, lambda _: 1, lambda: IngressSettings(max_batch_size=3))
    futures = [door.submit(item) for item in "abc"]
    assert await asyncio.wait_for(asyncio.gather(futures[0], futures[2]), 1) == ["a", "c"]
    assert not futures[1].done()
    gate.set()
    with pytest.raises(RuntimeError):
        await futures[1]


async def test_settings_change_while_it_runs():
    limits, recorder = [IngressSettings(max_batch_size=2)], Recorder()
    door = Door(recorder, lambda item: item, lambda: limits[-1])
    recorder.gate.set()
    limits.append(IngressSettings(max_batch_size=3))
    await asyncio.gather(*(door.submit(item) for item in range(6)))
    assert recorder.batches == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize("count", [1, 100])
async def test_nothing_is_lost_under_churn(count):
    door, recorder = batcher(max_batch_size=7, max_concurrent_batches=3)
    recorder.gate.set()

    async def caller(item):
        await asyncio.sleep(item % 5 / 1000)
        return await door.submit(item)

    assert await asyncio.gather(*(caller(item) for item in range(count))) == [item * 2 for item in range(count)]
    assert max(map(len, recorder.batches)) <= 7


async def test_a_batch_runs_in_no_requests_context():
    """Serve cancels what was called in a request's context when its client leaves; neighbours must not suffer."""
    request = ContextVar("request", default=None)
    seen = []

    async def run(items):
        seen.append(request.get())
        await asyncio.sleep(0)
        yield range(len(items)), items

    door = Door(run, lambda _: 1, lambda: IngressSettings(max_batch_size=2, max_concurrent_batches=1))

    async def caller(item):
        request.set(item)
        return await door.submit(item)

    await asyncio.gather(*(caller(item) for item in range(1, 6)))
    assert seen == [None, None, None]


async def test_a_batch_that_is_cancelled_leaves_nobody_waiting():
    async def run(_):
        raise asyncio.CancelledError
        yield

    door = Door(run, lambda _: 1, lambda: IngressSettings())
    outcomes = await asyncio.wait_for(asyncio.gather(door.submit(1), door.submit(2), return_exceptions=True), 1)
    assert [type(outcome) for outcome in outcomes] == [asyncio.CancelledError] * 2


async def test_items_that_nobody_waits_for_are_let_go():
    door, recorder = batcher(max_concurrent_batches=1)
    first = door.submit(1)
    await settle()
    for future in [door.submit(item) for item in range(100)]:
        future.cancel()
    await settle()
    assert door.waiting == 0
    recorder.gate.set()
    await first


async def test_the_next_batch_leaves_before_a_whole_batch_is_answered():
    answered = []

    async def run(items):
        answered.append(sum(future.done() for future in futures))
        yield range(len(items)), items

    limits = IngressSettings(max_batch_size=8, max_concurrent_batches=1)
    door = Door(run, lambda _: 1, lambda: limits)
    futures = [door.submit(item) for item in range(16)]
    assert await asyncio.gather(*futures) == list(range(16))
    assert answered[0] == 0
    assert answered[1] < 8


async def test_whoever_leaves_before_its_turn_is_passed_over():
    door, recorder = batcher(max_batch_size=3)
    futures = [door.submit(item) for item in range(3)]
    futures[0].add_done_callback(lambda _: futures[1].cancel())
    recorder.gate.set()
    await asyncio.wait(futures)
    assert [future.cancelled() for future in futures] == [False, True, False]
    assert futures[2].result() == 4
