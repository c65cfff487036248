"""When batches leave, in virtual time."""

import heapq
import itertools
from random import Random
from statistics import mean

import pytest

from deployments.ingress.batching import MOST_SKIPPED, NORMAL_PER_LOW, SENDS_S, Batching, LowPriorityBatching
from deployments.ingress.settings import IngressSettings

# A batch takes so long, and so much longer for each of its images, seconds.
FIXED_S, EACH_S = 0.004, 0.001


class Machine:
    """Executes batches one after the other, or so many at a time, and counts them."""

    def __init__(self, **settings):
        self.now, self.limits = 0.0, IngressSettings(**{"max_concurrent_batches": 1, **settings})
        self.batching = Batching(lambda: self.limits, lambda: self.now)
        self._events, self._order = [], itertools.count()
        self._waiting = []
        self.batches, self.latencies = [], []

    def at(self, time, do):
        heapq.heappush(self._events, (time, next(self._order), do))

    def arrive(self, answered=lambda: None):
        self._waiting.append((self.now, answered))
        self.batching.arrived(len(self._waiting))

    def run(self, until):
        while self._events and self._events[0][0] <= until:
            self.now, _, do = heapq.heappop(self._events)
            do()
            while (leaves_at := self.batching.leaves_at(len(self._waiting))) is not None:
                if leaves_at > self.now:
                    self.at(leaves_at, lambda: None)
                    break
                self._leave()
        self.now = until

    def _leave(self):
        size = min(len(self._waiting), self.limits.max_batch_size)
        batch, self._waiting = self._waiting[:size], self._waiting[size:]
        left = self.batching.left(size)
        self.batches.append(size)

        def end():
            self.batching.ended(size, left)
            for arrived, answered in batch:
                self.latencies.append(self.now - arrived)
                answered()

        self.at(self.now + FIXED_S + EACH_S * size, end)


def closed(clients, turnaround=0.0005, seconds=10, **settings):
    """Clients that each send again when they have their answer."""
    machine = Machine(**settings)

    def send(client):
        # They do not all come back at the same moment.
        return lambda: machine.arrive(lambda: machine.at(machine.now + turnaround * (1 + client % 3), send(client)))

    for client in range(clients):
        machine.at(client / 10_000, send(client))
    machine.run(seconds)
    return machine


def opened(rate, seconds=20, **settings):
    """Clients that come independently of the answers, so many each second."""
    machine, random, time = Machine(**settings), Random(1), 0.0
    while (time := time + random.expovariate(rate)) < seconds:
        machine.at(time, machine.arrive)
    machine.run(seconds + 1)
    return machine


def test_a_lone_client_is_never_made_to_wait():
    machine = closed(1)
    assert max(machine.latencies) == pytest.approx(FIXED_S + EACH_S)
    assert machine.batching.waits == 0


@pytest.mark.parametrize("clients", [3, 8, 16])
def test_clients_that_send_again_at_once_share_a_batch(clients):
    machine, greedy = closed(clients), closed(clients, refill_share=0)
    assert machine.batches[-1] == clients
    assert len(machine.latencies) > 1.1 * len(greedy.latencies)
    assert mean(machine.latencies) < mean(greedy.latencies)


def test_a_full_batch_leaves_without_the_others():
    machine = closed(32)
    assert set(machine.batches[1:]) == {16}
    assert machine.batching.waited_s < 0.01


def test_who_needs_longer_than_the_gain_is_worth_is_not_waited_for():
    slow = 0.05
    machine, greedy = closed(8, slow), closed(8, slow, refill_share=0)
    assert len(machine.latencies) > 0.97 * len(greedy.latencies)
    # After a wait in vain many are left out.
    assert machine.batching.waits < len(machine.batches) / 10


@pytest.mark.parametrize("rate", [20, 100, 200])
def test_clients_that_come_as_they_like_wait_hardly_longer(rate):
    machine, greedy = opened(rate), opened(rate, refill_share=0)
    assert mean(machine.latencies) < 1.05 * mean(greedy.latencies)


def test_no_wait_is_longer_than_the_share_of_a_batch():
    machine = Machine(refill_share=0.25)
    for _ in range(4):
        machine.arrive()
    machine.at(0, lambda: None)
    machine.at(0.02, machine.arrive)
    machine.run(0.0085)
    assert machine.batches == [4]
    machine.arrive()
    machine.at(0.0086, lambda: None)
    machine.run(0.03)
    # The four took 8 ms, a quarter of which is waited for the three that do not come.
    assert machine.batches[:2] == [4, 1]
    assert machine.latencies[4] == pytest.approx(0.0015 + FIXED_S + EACH_S)


def test_waits_in_vain_are_tried_again_ever_more_rarely_and_at_once_when_one_pays():
    machine = Machine()
    waited = []
    for number in range(260):
        start = number * 0.1
        for _ in range(2):
            machine.at(start, machine.arrive)
        # One comes while the two are executed, and nobody when they have ended.
        machine.at(start + 0.001, machine.arrive)
        machine.run(start + 0.099)
        waited.append(machine.batching.waits)
    gaps = [number for number in range(1, 260) if waited[number] > waited[number - 1]]
    assert [later - sooner for sooner, later in itertools.pairwise(gaps)] == [2, 3, 5, 9, 17, 33, 65, MOST_SKIPPED + 1]


def test_an_idle_graph_waits_as_long_as_it_is_told_to_from_the_first_image_on():
    machine = Machine(batch_wait_ms=10)
    machine.at(0, machine.arrive)
    machine.at(0.008, machine.arrive)
    machine.run(0.1)
    assert machine.batches == [2]
    assert machine.latencies == [pytest.approx(0.016), pytest.approx(0.008)]


def test_no_more_batches_are_in_flight_than_there_are_slots():
    machine = Machine(max_concurrent_batches=2, max_batch_size=2)
    for _ in range(10):
        machine.arrive()
    machine.at(0, lambda: None)
    machine.run(0.001)
    assert (machine.batches, machine.batching.in_flight) == ([2, 2], 2)
    machine.run(1)
    assert (machine.batches, machine.batching.in_flight) == ([2] * 5, 0)


def took(size):
    return FIXED_S + EACH_S * size


def together(machine, time, count):
    machine.at(time, lambda: [machine.arrive() for _ in range(count)])


def test_beside_a_larger_batch_a_smaller_one_waits_for_its_end():
    machine = Machine(max_concurrent_batches=2, refill_share=0)
    together(machine, 0, 4)
    together(machine, 1, 4)
    together(machine, 1.001, 1)
    machine.run(1 + took(4) / 2)
    assert machine.batching.in_flight == 1
    machine.run(2)
    assert machine.batches == [4, 4, 1]
    assert machine.latencies[-1] == pytest.approx(took(4) - 0.001 + took(1))


def test_beside_a_batch_one_as_large_leaves_at_once():
    machine = Machine(max_concurrent_batches=2, refill_share=0)
    together(machine, 0, 4)
    together(machine, 1, 4)
    together(machine, 1.001, 4)
    machine.run(1.002)
    assert machine.batching.in_flight == 2


def test_a_batch_that_takes_longer_than_the_last_holds_a_lone_image_no_longer():
    machine = Machine(max_concurrent_batches=2, max_batch_size=64)
    together(machine, 0, 1)
    together(machine, 1, 64)
    together(machine, 1.001, 1)
    machine.run(2)
    # It left after the time of the first one, and was answered before the 64.
    assert machine.batches == [1, 64, 1]
    assert machine.latencies[1] == pytest.approx(2 * took(1))


class Prioritized(Machine):
    """A machine whose slots images of low priority share: `low` of them wait from the start."""

    def __init__(self, low, **settings):
        super().__init__(**settings)
        is_idle = lambda: not (self._waiting or self.batching.in_flight)  # noqa: E731
        self.low = LowPriorityBatching(lambda: self.limits, lambda: self.now, [self.batching], is_idle)
        self.low_batches, self.low_waiting = [], low
        self.low.arrived(low)

    def run(self, until):
        while self._events and self._events[0][0] <= until:
            super().run(self._events[0][0])
            leaves_at = self.low.leaves_at(self.low_waiting)
            if leaves_at is not None and leaves_at > self.now:
                self.at(leaves_at, lambda: None)
            elif leaves_at is not None:
                size = min(1 if self.low.leaves_alone else self.limits.max_batch_size, self.low_waiting)
                self.low_waiting -= size
                self.low_batches.append((self.now, size))
                left = self.low.left(size)
                self.at(self.now + FIXED_S + EACH_S * size, lambda size=size, left=left: self.low.ended(size, left))


def test_low_priority_gets_its_share_beside_normal_priority_and_batches_without_it():
    machine = Prioritized(1000)

    def send():
        if machine.now < 10:
            machine.arrive(lambda: machine.at(machine.now, send))

    for client in range(16):
        machine.at(client / 10_000, send)
    machine.run(30)
    beside = [size for time, size in machine.low_batches if time < 10]
    assert set(beside) == {1}
    assert len(beside) == pytest.approx(machine.batching.arrivals / NORMAL_PER_LOW, rel=0.1)
    assert machine.low_batches[-1][1] > 1
    assert min(time for time, size in machine.low_batches if size > 1) > 10 + SENDS_S - 0.1
    assert machine.low_waiting == 0
