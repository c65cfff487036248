"""What a server costs besides its nodes' work: what was measured of two loads, less what the nodes' curves explain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import msgspec

from deployments.contract.names import INGRESS, TRANSFORMER
from ensemble_capacity.load.load import Closed
from ensemble_capacity.load.row import Row
from ensemble_capacity.plan.graph import MEDIAN
from ensemble_capacity.plan.prediction import Prediction, predict
from ensemble_capacity.plan.profile import SHARES, Overhead, Profile, Served
from ensemble_capacity.plan.setting import Setting, setting
from scripts import configuration

PROXY = "haproxy"
# What is beyond them is a mistake of the measurement, and not of the cores.
SLOWEST, FASTEST = 0.6, 1.2


@dataclass(frozen=True)
class Watched:
    """What was seen of a server under a load; CPU time in milliseconds per request, memory in megabytes.

    Attributes:
        clients: at a time.
        requests_per_s: that were answered.
        latency_ms: at each of `SHARES`.
        images: per batch, on average.
        ingress_ms: CPU time of the ingress' replicas.
        nodes_ms: of the separate nodes' replicas.
        proxy_ms: of HAProxy.
        client_ms: of the load generator.
        rest: cores that the server's other processes used.
        memory_mb: of the ingress' replicas, of the separate nodes', and of the rest.
    """

    clients: int
    requests_per_s: float
    latency_ms: tuple[float, ...]
    images: float
    ingress_ms: float
    nodes_ms: float
    proxy_ms: float
    client_ms: float
    rest: float
    memory_mb: tuple[float, float, float]

    @classmethod
    def of(cls, row: Row) -> Self:
        """What a row has of the server's processes."""
        sizes = row.server.batches
        used = {kind: 0.0 for kind in ("ingress", "node", "proxy", "rest")}
        memory = dict(used)
        for name, seconds in row.server.cpu_s.items():
            used[_kind(name)] += seconds
        for name, megabytes in row.server.memory_mb.items():
            memory[_kind(name)] += megabytes
        batches = sum(sizes.values())

        def per_request_ms(kind: str) -> float:
            return float(1000 * row.per_request(used[kind]))

        return cls(
            int(row.value),
            float(row.requests_per_s),
            (row.min_ms, *row.percentiles_ms.values(), row.max_ms),
            sum(size * count for size, count in sizes.items()) / batches if batches else 1.0,
            per_request_ms("ingress"),
            per_request_ms("node"),
            per_request_ms("proxy"),
            row.client_cpu_ms,
            used["rest"] / row.server.seconds if row.server.seconds else 0.0,
            (memory["ingress"], memory["node"], memory["proxy"] + memory["rest"]),
        )


def _kind(name: str) -> str:
    # Ray names a replica by its class while it works, and by its actor's name before.
    if "ServeReplica:" in name or "SERVE_REPLICA::" in name:
        return "ingress" if f":{INGRESS}" in name or f"#{INGRESS}#" in name else "node"
    return "proxy" if PROXY in name else "rest"


def explained_ms(profile: Profile, given: Setting, images: float) -> float:
    """CPU time of the nodes per image, milliseconds, by their curves, in batches of so many images."""
    size = max(1, round(images))
    decode, _, _ = profile.curve(TRANSFORMER, given.decoding).at(size)
    members = [
        profile.curve(name, threads, given.streams.get(name)).at(size) for name, threads in given.members.items()
    ]
    side_by_side = len(members) > 1 and given.exits is None
    return 1000 * (decode + sum(cpu * (factor if side_by_side else 1) for cpu, _, factor in members)) / size


def overhead(few: tuple[float, float], many: tuple[float, float]) -> Overhead:
    """The CPU time of a batch and of an image, milliseconds.

    Args:
        few: images per batch, and what is left of an image's CPU time in such batches, milliseconds.
        many: the same of larger batches.
    """
    (size, left), (larger, left_many) = few, many
    # left = image + batch / size, for both.
    batch = (left - left_many) / (1 / size - 1 / larger) if larger > 1.5 * size else 0.0
    batch = min(max(0.0, batch), max(0.0, left) * size)
    return Overhead(batch, max(0.0, left_many - batch / larger))


def served(
    profile: Profile,
    config: Mapping[str, Any],
    watched: Sequence[Watched],
    inline: Served | None = None,
) -> Served:
    """What a server costs, by one load with single images and one with large batches.

    Args:
        profile: the nodes' curves.
        config: what was served.
        watched: the two loads.
        inline: what it costs with every node in one process; None where that is what was served.
    """
    few, many = watched
    application = next(configuration.ours(config))
    exits = None
    if (cascade := configuration.check_arguments(application).ensemble.cascade) is not None:
        exits = (0.0,) * (len(cascade.order) - 1)
    given = setting(application, exits)
    work = [explained_ms(profile, given, each.images) for each in watched]
    is_inline, nodes = not given.separate, len(given.separate)
    inside = work if is_inline else [0.0, 0.0]
    ingress = overhead(*((each.images, each.ingress_ms - part) for each, part in zip(watched, inside, strict=True)))
    node = Overhead()
    if not is_inline:
        calls = overhead(*((each.images, each.nodes_ms - part) for each, part in zip(watched, work, strict=True)))
        node = Overhead(calls.batch_ms / nodes, calls.image_ms / nodes)
    memory = many.memory_mb
    found = Served(
        ingress,
        node,
        many.proxy_ms,
        many.client_ms,
        min(few.rest, many.rest),
        (0.0,) * len(SHARES),
        memory[0],
        memory[1] / max(1, nodes),
        memory[2],
    )

    def predicted(clients: int) -> Prediction:
        whole = msgspec.structs.replace(profile, served={"inline": inline or found, "separate": found})
        return predict(given, whole, Closed(clients), clients_here=True, requests=1000)

    # The one depends on the other a little.
    for _ in range(2):
        # Clients that keep the cores busy get less than these could compute.
        speed = found.speed * many.requests_per_s / predicted(many.clients).requests_per_s
        found = msgspec.structs.replace(found, speed=min(max(SLOWEST, speed), FASTEST))
        # What one client waits for besides what is computed.
        computed = predicted(few.clients).p50_ms - found.delays_ms[MEDIAN]
        delays = tuple(max(0.0, each - computed) for each in few.latency_ms)
        found = msgspec.structs.replace(found, delays_ms=delays)
    return found
