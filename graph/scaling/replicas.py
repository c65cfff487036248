"""How many replicas hold a latency: the tail of the wait in a queue with several servers."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Load:
    """What a deployment has to do.

    Attributes:
        rate: calls that arrive, per second.
        alone_s: how long a call takes that does not wait, seconds.
        spread: the variance of these durations, divided by the square of their mean: 0 where all take equally long,
            1 where they are exponential.
    """

    rate: float
    alone_s: float
    spread: float = 1.0

    @property
    def busy(self) -> float:
        """How many calls are worked on at a time, on average, if none waits."""
        return self.rate * self.alone_s


def waiting_longer(load: Load, servers: int, wait_s: float) -> float:
    """Return the share of calls that wait longer than a time before one of so many servers is free.

    Whether a call waits is Erlang's C formula, which takes durations to be exponential. Those of a model vary less, and
    then a queue is gone sooner: the tail falls faster, by the factor of Allen and Cunneen's approximation (Allen,
    Probability, Statistics and Queueing Theory, 1990).
    """
    busy = load.busy
    if busy >= servers:
        return 1.0
    blocked = 1.0
    for n in range(1, servers + 1):
        # Erlang's B formula, by its recursion.
        blocked = busy * blocked / (n + busy * blocked)
    queued = blocked / (1 - busy / servers * (1 - blocked))
    return queued * math.exp(-2 / (1 + load.spread) * (servers - busy) * wait_s / load.alone_s)


def needed(load: Load, target_s: float, late: float, at_a_time: int, most: int) -> int:
    """Return the least number of replicas with which at most a share of the calls takes longer than a target.

    Args:
        load: what has to be done.
        target_s: of a call, with its wait, seconds.
        late: the share that may take longer.
        at_a_time: calls that a replica works on at a time.
        most: replicas; the result where no number up to it is enough.
    """
    if not load.rate or not load.alone_s:
        return 1
    # A target that even a call alone misses: then as few as possible wait.
    wait_s = max(0.0, target_s - load.alone_s)
    first = max(1, math.ceil(load.busy / at_a_time))
    for replicas in range(first, most):
        if waiting_longer(load, replicas * at_a_time, wait_s) <= late:
            return replicas
    return most
