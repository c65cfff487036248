"""A machine in virtual time: a heap of events, a clock, and cores that the threads which compute share evenly."""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable
from itertools import count

Then = Callable[[], None]
# Work that is left of a job when it counts as done, seconds: what floating-point numbers are exact to.
NOTHING_S = 1e-12


class Machine:
    """A clock, and cores under processor sharing.

    While more threads compute than there are cores, all of them are slowed down alike, as by the kernel's scheduler.

    Attributes:
        now: the time, seconds.
        used_s: CPU time that was asked for so far, seconds.
    """

    def __init__(self, cores: float) -> None:
        """Set the number of cores; what else runs on them may have taken a part of one."""
        self.now = self.used_s = 0.0
        self._cores = cores
        self._number = count()
        self._timers: list[tuple[float, int, Then]] = []
        # Jobs by how far a thread must have come that began at time 0 and never paused; a thread's progress is the
        # same for all of them, because all are slowed down alike.
        self._jobs: list[tuple[float, int, float, Then]] = []
        self._progress = self._threads = 0.0

    def at(self, time: float, then: Then) -> None:
        """Call `then` at a time."""
        heapq.heappush(self._timers, (time, next(self._number), then))

    def compute(self, work_s: float, threads: float, then: Then) -> None:
        """Call `then` when so many threads have computed for so many seconds of CPU time together."""
        self.used_s += work_s
        heapq.heappush(self._jobs, (self._progress + work_s / threads, next(self._number), threads, then))
        self._threads += threads

    def run(self, is_over: Callable[[], bool]) -> None:
        """Let time pass until it is over, or nothing happens any more."""
        while (self._timers or self._jobs) and not is_over():
            speed = min(1.0, self._cores / self._threads) if self._jobs else 1.0
            finished = self.now + (self._jobs[0][0] - self._progress) / speed if self._jobs else math.inf
            if self._timers and self._timers[0][0] < finished:
                time, _, then = heapq.heappop(self._timers)
                self._progress += (time - self.now) * speed
            else:
                self._progress, _, threads, then = heapq.heappop(self._jobs)
                time, self._threads = finished, self._threads - threads
            self.now = max(self.now, time)
            then()


class Pool:
    """Workers that do jobs in order: an event loop is one worker, a thread pool and a model's streams are several.

    Attributes:
        used_s: CPU time so far, seconds.
    """

    def __init__(self, machine: Machine, workers: int = 1) -> None:
        """Set how many jobs are done at a time."""
        self._machine, self._workers = machine, workers
        self._idle = workers
        self._waiting: deque[tuple[float, float, Then]] = deque()
        self.used_s = 0.0

    def do(self, work_s: float, then: Then, threads: float = 1.0) -> None:
        """Call `then` when a worker has done the job, which takes CPU time on so many threads."""
        self.used_s += work_s
        self._waiting.append((work_s, threads, then))
        self._begin()

    def _begin(self) -> None:
        while self._idle and self._waiting:
            work_s, threads, then = self._waiting.popleft()
            self._idle -= 1

            def done(then: Then = then) -> None:
                self._idle += 1
                then()
                self._begin()

            if work_s > NOTHING_S:
                self._machine.compute(work_s, threads, done)
            else:
                self._machine.at(self._machine.now, done)

    def busy(self, seconds: float) -> float:
        """The share of so many seconds in which its workers computed."""
        return self.used_s / seconds / self._workers
