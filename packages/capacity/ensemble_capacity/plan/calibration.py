"""Calculates a server's costs besides its nodes' work: two measured loads, less what the curves explain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import msgspec

from deployments.contract.names import INGRESS
from ensemble_capacity.load.measure import Row
from ensemble_capacity.plan.model import Model
from ensemble_capacity.plan.profile import SHARES, Overhead, Profile, Served
from ensemble_capacity.plan.scenario import Scenario

# What is beyond them is a mistake of the measurement, and not of the cores.
SLOWEST, FASTEST = 0.1, 1.2


@dataclass(frozen=True)
class Watched:
    """The measured use of a server under a closed loop; CPU time in milliseconds per request, memory in megabytes.

    Attributes:
        clients: at a time.
        requests_per_s: that were answered.
        latency_ms: at each of `SHARES`.
        images: per batch, on average.
        cpu_ms: CPU time by kind of process: `ingress`, `node`, `proxy` (HAProxy) and `rest`.
        client_ms: CPU time of the load generator.
        background: cores that the processes of the kind `rest` used.
        memory_mb: by kind of process.
    """

    clients: int
    requests_per_s: float
    latency_ms: tuple[float, ...]
    images: float
    cpu_ms: dict[str, float]
    client_ms: float
    background: float
    memory_mb: dict[str, float]

    @classmethod
    def of(cls, row: Row) -> Self:
        """Take the figures of the server's processes from a row."""
        sizes, used = row.server.batches, dict.fromkeys(("ingress", "node", "proxy", "rest"), 0.0)
        memory = dict(used)
        for name, seconds in row.server.cpu_s.items():
            used[_kind(name)] += seconds
        for name, megabytes in row.server.memory_mb.items():
            memory[_kind(name)] += megabytes
        batches = sum(sizes.values())
        return cls(
            int(row.value),
            float(row.requests_per_s),
            (row.min_ms, *row.percentiles_ms.values(), row.max_ms),
            sum(size * count for size, count in sizes.items()) / batches if batches else 1.0,
            {kind: float(1000 * row.per_request(seconds)) for kind, seconds in used.items()},
            row.client_cpu_ms,
            used["rest"] / row.server.seconds if row.server.seconds else 0.0,
            memory,
        )


def _kind(name: str) -> str:
    # Ray names a replica by its class while it works, and by its actor's name before.
    if "ServeReplica:" in name or "SERVE_REPLICA::" in name:
        return "ingress" if f":{INGRESS}" in name or f"#{INGRESS}#" in name else "node"
    return "proxy" if "haproxy" in name else "rest"


def overhead(few: tuple[float, float], many: tuple[float, float]) -> Overhead:
    """Split the rest of an image's CPU time, milliseconds, into the time of a batch and the time of an image.

    Args:
        few: images per batch, and the rest of an image's CPU time in such batches.
        many: the same of larger batches.
    """
    (size, left), (larger, left_many) = few, many
    # left = image + batch / size, for both.
    batch = (left - left_many) / (1 / size - 1 / larger) if larger > 1.5 * size else 0.0
    batch = min(max(0.0, batch), max(0.0, left) * size)
    return Overhead(batch, max(0.0, left_many - batch / larger))


def served(profile: Profile, given: Scenario, few: Watched, many: Watched, inline: Served | None = None) -> Served:
    """Calculate what a server costs from a load with single images and a load with large batches.

    Args:
        profile: the nodes' curves.
        given: the served configuration.
        few: the load of single images.
        many: the load of large batches.
        inline: the cost of a server with every node in one process; None if `given` is such a server.
    """
    free = Served(Overhead(), Overhead(), 0.0, 0.0, 0.0, (0.0,) * len(SHARES), 0.0, 0.0, 0.0)

    def model(costs: Served) -> Model:
        whole = msgspec.structs.replace(profile, served={"inline": inline or costs, "separate": costs})
        return Model(given, whole, profile.cores, clients_here=True)

    nodes = len(given.separate)
    watched = (few, many)
    work = [1000 * model(free).work_s(each.images) / each.images for each in watched]
    calls = Overhead()
    if nodes:
        calls = overhead(*((each.images, each.cpu_ms["node"] - part) for each, part in zip(watched, work, strict=True)))
        work = [0.0, 0.0]
    ingress = overhead(
        *((each.images, each.cpu_ms["ingress"] - part) for each, part in zip(watched, work, strict=True))
    )
    memory = many.memory_mb
    found = Served(
        ingress,
        Overhead(calls.batch_ms / max(1, nodes), calls.image_ms / max(1, nodes)),
        many.cpu_ms["proxy"],
        many.client_ms,
        min(few.background, many.background),
        free.delays_ms,
        memory["ingress"],
        memory["node"] / max(1, nodes),
        memory["proxy"] + memory["rest"],
    )
    # What one client waits for besides what is computed.
    alone = 1000 * model(found).duration_s(1)
    found = msgspec.structs.replace(found, delays_ms=tuple(max(0.0, each - alone) for each in few.latency_ms))
    speed = many.requests_per_s / model(found).closed(many.clients)[0]
    return msgspec.structs.replace(found, speed=min(max(SLOWEST, speed), FASTEST))


def ratios(row: Row, predicted: dict[str, float]) -> dict[str, float]:
    """Divide the measured figures of a row by the predicted ones; those without a number are left out."""
    seen = {
        "requests_per_s": row.requests_per_s,
        "p50_ms": row.percentiles_ms["p50"],
        "p99_ms": row.percentiles_ms["p99"],
    }
    found = {name: float(seen[name] / value) for name, value in predicted.items() if value and value < float("inf")}
    return {name: ratio for name, ratio in found.items() if 0 < ratio < float("inf")}
