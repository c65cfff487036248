"""Clients of a server that faults are done to, and what they saw: what each request got, and when."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ensemble_capacity.load.generator import Generator
from ensemble_capacity.load.load import Closed, Target
from ensemble_capacity.load.protocols import Classify
from ensemble_capacity.load.records import DEGRADED, Records, latency_ms, ok, quantile

# A client whose request failed waits so long: one that fails at once would count thousands of failures per second.
PAUSE_S = 0.1


def watch(url: str, images: Sequence[bytes], clients: int) -> Generator:
    """Clients that each send one request after the other, at one attempt each, for as long as they are entered."""
    return Generator(Target(url, Classify(), tuple(images)), Closed(clients, pause_s=PAUSE_S))


def is_whole(found: Records, since: float) -> bool:
    """Whether the last request, sent after a time, was answered by every member."""
    if not len(found):
        return False
    last = found[np.argmax(found["done"])]
    return bool(last["due"] > since and ok(found)[np.argmax(found["done"])] and not last["flags"] & DEGRADED)


@dataclass(frozen=True)
class Sight:
    """What the clients saw.

    Attributes:
        requests: how many were sent.
        failed: how many of them had no answer.
        degraded: how many answers lacked a member.
        dark_s: the longest time without an answer, seconds.
        p99_ms: the 99th percentile of the answers' latency, milliseconds.
        kept: how many answers came per second while the fault was done, as a fraction of those before.
        first_failure: what the first failed request got.
    """

    requests: int
    failed: int
    degraded: int
    dark_s: float
    p99_ms: float
    kept: float
    first_failure: str


def sight(found: Records, watched_from: float, began: float, ended: float, first_failure: str = "") -> Sight:
    """What clients saw of a fault.

    Args:
        found: what became of their requests.
        watched_from: when they began, seconds of `time.perf_counter`.
        began: when the fault began, likewise.
        ended: when it was over, likewise.
        first_failure: what the first failed request got.
    """
    answers = found[ok(found)]
    ends = [watched_from, *np.sort(answers["done"]).tolist()]
    before = _rate(ends[1:], ends[1] if len(answers) else began, began)
    return Sight(
        requests=len(found),
        failed=len(found) - len(answers),
        degraded=int(np.count_nonzero(answers["flags"] & DEGRADED)),
        dark_s=max((later - sooner for sooner, later in itertools.pairwise(ends)), default=float("inf")),
        p99_ms=quantile(latency_ms(answers), 99),
        kept=_rate(ends[1:], began, ended) / before if before else float("nan"),
        first_failure=first_failure,
    )


def _rate(ends: Sequence[float], since: float, until: float) -> float:
    """How many of these came per second after one time, up to another; not a number if there is no time between."""
    return sum(since < end <= until for end in ends) / (until - since) if until > since else float("nan")
