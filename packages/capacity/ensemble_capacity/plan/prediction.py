"""A prediction: what the simulation of a configuration says about its throughput, latency, CPU and memory."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from deployments.contract.names import INGRESS
from ensemble_capacity.load.load import Closed, Mode
from ensemble_capacity.load.records import quantile
from ensemble_capacity.plan.profile import Profile, Served
from ensemble_capacity.plan.setting import Setting
from ensemble_capacity.plan.simulation import REQUESTS, WARM_UP, Simulation

# Of cores or of a thread: above it, that is what limits the throughput.
FULL = 0.95
# An open loop that answers less than this share of what is due falls behind.
KEEPS_UP = 0.97


@dataclass(frozen=True)
class Prediction:
    """What a load does to a server; times are those of requests that are answered.

    Attributes:
        load: in words.
        requests_per_s: that are answered.
        p50_ms: of the latency.
        p99_ms: of the latency; infinite where an open loop is more than the server answers.
        cpu: cores that the server uses, on average.
        memory_mb: of the server.
        images: per batch, on average.
        refused: share of the requests.
        limit: what is full; empty if nothing is.
    """

    load: str
    requests_per_s: float
    p50_ms: float
    p99_ms: float
    cpu: float
    memory_mb: float
    images: float
    refused: float
    limit: str

    @property
    def cells(self) -> list[str]:
        """Its line in a table."""
        numbers = [f"{self.requests_per_s:,.0f}", in_ms(self.p50_ms), in_ms(self.p99_ms), f"{self.cpu:.2f}"]
        return [self.load, *numbers, f"{self.memory_mb:,.0f}", f"{self.images:.1f}", f"{self.refused:.1%}", self.limit]


def in_ms(latency_ms: float) -> str:
    """A latency in a table; that of requests that fail, or are more than are answered, has no end."""
    return "without end" if math.isinf(latency_ms) else f"{latency_ms:.1f}"


HEADINGS = ("load", "requests/s", "p50, ms", "p99, ms", "cores used", "memory, MB", "images/batch", "refused", "full")


def predict(
    setting: Setting,
    profile: Profile,
    load: Mode,
    cores: int | None = None,
    *,
    clients_here: bool = False,
    requests: int = REQUESTS,
) -> Prediction:
    """Predict what a load does to a server.

    Args:
        setting: of the server.
        profile: the durations.
        load: clients of a closed loop, or arrivals.
        cores: of the machine; None for as many as were profiled.
        clients_here: whether the clients compute on these cores, too.
        requests: so many are simulated.
    """
    usable = cores or profile.cores
    simulation = Simulation(setting, profile, usable, clients_here)
    simulation.run(load, requests)
    begin = simulation.requests[int(WARM_UP * len(simulation.requests))].done
    counted = [each for each in simulation.requests if each.done >= begin]
    latencies = np.array([(each.done - each.due) * 1000 for each in counted if not each.refused])
    now = simulation.machine.now
    rate = len(latencies) / max(now - begin, 1e-9)
    used = simulation.used_s / now
    left = max(more_under_way(latencies, rate), len(counted) - len(latencies))
    falls_behind = not isinstance(load, Closed) and left > len(counted) * (1 - KEEPS_UP)
    replicas = simulation.replicas
    return Prediction(
        f"{load.concurrency} at a time" if isinstance(load, Closed) else f"{load.rate:.4g}/s",
        rate,
        quantile(latencies, 50),
        math.inf if falls_behind else quantile(latencies, 99),
        used,
        memory_mb(setting, simulation.costs),
        sum(each.images for each in replicas) / max(1, sum(each.batches for each in replicas)),
        1 - len(latencies) / len(counted),
        _limit(simulation, usable, used),
    )


def more_under_way(latencies: NDArray[np.float64], rate: float) -> float:
    """How many more requests are under way at the end than at the beginning, by Little's law.

    Counted they would differ by chance, as arrivals do; a fifth of the requests tells how long they take.
    """
    if not latencies.size:
        return 0.0
    fifth = -(-len(latencies) // 5)
    return rate * float(latencies[-fifth:].mean() - latencies[:fifth].mean()) / 1000


def _limit(simulation: Simulation, cores: int, used: float) -> str:
    """What is full."""
    if used + simulation.clients_used >= FULL * cores:
        return "cores"
    name, busy = max(simulation.busy().items(), key=lambda each: each[1])
    return name if busy >= FULL else ""


def memory_mb(setting: Setting, costs: Served) -> float:
    """Memory of the server: of what every server has, of the ingress' replicas and of the separate nodes'."""
    nodes = sum(setting.count(name) for name in setting.separate)
    return costs.rest_mb + setting.count(INGRESS) * costs.ingress_mb + nodes * costs.node_mb
