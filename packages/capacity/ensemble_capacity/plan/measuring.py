"""Makes a profile: short measurements of the nodes in this process, and of servers in both placements."""

from __future__ import annotations

import asyncio
import math
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

import msgspec
import numpy as np

from deployments.contract.batch import Batch
from deployments.contract.item import STREAMS, Item
from deployments.contract.names import TRANSFORMER
from deployments.contract.nodes import Node
from deployments.contract.preprocessing import Preprocessing
from deployments.cpus import available_cpus
from deployments.members.local import LocalMember
from deployments.members.openvino import OpenVino
from deployments.transformer.transformer import JpegTransformer, TransformerSettings
from ensemble_capacity.load.load import Arrivals, Closed, Mode
from ensemble_capacity.load.machine import Others
from ensemble_capacity.load.measure import Row
from ensemble_capacity.plan import profile as profiles
from ensemble_capacity.plan.calibration import Watched, ratios, served
from ensemble_capacity.plan.model import predict
from ensemble_capacity.plan.placements import asking_all, placed, tuned
from ensemble_capacity.plan.profile import FIGURES, Check, Curve, Placement, Point, Profile
from ensemble_capacity.plan.scenario import Scenario, every_member
from ensemble_capacity.plan.server import loaded, serving
from graph.config import EnsembleConfig
from graph.placement import make
from graph.signature import EnsembleSignature
from scripts import configuration
from scripts.errors import ScriptError

SIZES = (1, 4, 16)
# A measurement takes so long, and of each kind of batch at least so many are executed.
EACH_S, LEAST = 0.4, 5
# The clients of the two loads that costs are calculated from: their images go alone, and in large batches.
FEW, MANY = 1, 32
# The checks: clients of closed loops, and Poisson arrivals at shares of the rate that many clients got.
CLIENTS, SHARES_OF_MOST = (4, 16), (0.35, 0.7)
# Other settings of the ingress, which half of the checks are made with.
OTHER = {"max_batch_size": 4, "max_concurrent_batches": 1}
SERVED_S = 4.0
Keep = Callable[[Profile], None]
Log = Callable[[str], None]


@dataclass(frozen=True)
class Timed:
    """Executions of a batch: median CPU time, and the shortest duration, milliseconds."""

    cpu_ms: float
    wall_ms: float


async def timed(nodes: Sequence[Node[Any, Any]], batch: Batch[Any]) -> Timed:
    """Execute a batch on nodes side by side, again and again; the CPU time is theirs together."""

    async def execute() -> None:
        await asyncio.gather(*(node(batch) for node in nodes))

    await execute()
    cpu: list[float] = []
    wall: list[float] = []
    end = time.perf_counter() + EACH_S
    while len(wall) < LEAST or time.perf_counter() < end:
        began, used = time.perf_counter(), time.process_time()
        await execute()
        wall.append(1000 * (time.perf_counter() - began))
        cpu.append(1000 * (time.process_time() - used))
    # What disturbs makes it slower, never faster.
    return Timed(statistics.median(cpu), min(wall))


def images(payload: Any, count: int) -> Batch[Any]:
    """Make a batch of images."""
    return Batch(payload, tuple(Item() for _ in range(count)))


async def decoding(agreed: EnsembleSignature, photographs: Sequence[bytes]) -> Curve:
    """Measure the transformer."""
    cores, points = available_cpus(), []
    decode = JpegTransformer(TransformerSettings(), agreed.wanted, cores)
    for size in SIZES:
        taken = await timed([decode], images([photographs[i % len(photographs)] for i in range(size)], size))
        points.append(Point(size, taken.cpu_ms, taken.wall_ms))
    return Curve(cores, cores, tuple(points))


async def members(config: EnsembleConfig, agreed: EnsembleSignature, settings: Mapping[str, int]) -> dict[str, Curve]:
    """Measure each member with these settings, alone and beside the others."""
    made = {}
    for member in config.members:
        assert isinstance(member, LocalMember)
        wanted = agreed.preprocessing[member.name]
        assert isinstance(wanted, Preprocessing)
        # Without its own streams: the fastest number, unless the settings name one.
        own = {"streams": None} if isinstance(member, OpenVino) else {}
        given, gets = member.model_copy(update={**own, **settings}), agreed.interface(member.name)
        made[member.name] = make(given, 1, config.model_repository, gets, SIZES[-1]), wanted.size
    alone: dict[str, list[Point]] = {name: [] for name in made}
    together, streams = [], {}
    for size in SIZES:
        for name, (node, edge) in made.items():
            batch = images(np.random.default_rng(0).integers(0, 256, (size, *edge, 3), np.uint8), size)
            taken = await timed([node], batch)
            alone[name].append(Point(size, taken.cpu_ms, taken.wall_ms))
            answer = await node(batch)
            streams[name] = int(answer.notes[-1].attributes.get(STREAMS, 1))
        if len(made) > 1 and len({edge for _, edge in made.values()}) == 1:
            taken = await timed([node for node, _ in made.values()], batch)
            together.append(max(1.0, taken.cpu_ms / sum(points[-1].cpu_ms for points in alone.values())))
    threads = settings["threads"]
    return {name: Curve(threads, streams[name], tuple(alone[name]), tuple(together)) for name in made}


def measure(
    config: Mapping[str, Any], photographs: Sequence[bytes], begun: Profile | None, keep: Keep, log: Log = print
) -> Profile:
    """Measure the parts that a profile lacks.

    Args:
        config: a Serve config of one application.
        photographs: encoded images, which are decoded and sent in turn.
        begun: the profile so far; None for none.
        keep: gets the profile after each part, so that an interrupted measurement goes on there.
        log: gets a line before each part.

    Raises:
        ConfigurationError: the application can't be served.
        ScriptError: a server did not start, or refused requests.
    """
    profile = begun or Profile(facts(photographs), available_cpus())
    for title, part in _parts(config, photographs, profile):
        log(title)
        with Others() as others:
            profile = part(profile)
        profile = msgspec.structs.replace(profile, others=(*profile.others, (others.cores, others.name)))
        keep(profile)
    keep(profile := msgspec.structs.replace(profile, is_complete=True))
    return profile


Part = Callable[[Profile], Profile]


def _parts(config: Mapping[str, Any], photographs: Sequence[bytes], begun: Profile) -> Iterator[tuple[str, Part]]:
    """Yield the title of each part that is not measured yet, and what adds it to a profile."""
    ensemble, agreed = configuration.check(next(configuration.ours(config)))
    names, cores = [member.name for member in ensemble.members], begun.cores
    if TRANSFORMER not in begun.nodes:
        yield "decoding", lambda profile: extended(profile, {TRANSFORMER: asyncio.run(decoding(agreed, photographs))})
    for threads in sorted({1, max(1, cores // len(names)), cores}):
        if not any(curve.threads == threads for curve in begun.nodes.get(names[0], ())):
            title = f"members with {threads} {'thread' if threads == 1 else 'threads'}"
            yield title, partial(_with_threads, ensemble=ensemble, agreed=agreed, threads=threads)
    for placement in profiles.SERVED:
        if placement not in begun.served:
            part = partial(servers, config=config, photographs=photographs, placement=placement)
            yield f"two servers, every node {placement}", part


def extended(profile: Profile, curves: Mapping[str, Curve]) -> Profile:
    """Add a curve of each node."""
    added = {name: (*profile.nodes.get(name, ()), curve) for name, curve in curves.items()}
    return msgspec.structs.replace(profile, nodes={**profile.nodes, **added})


def _with_threads(profile: Profile, ensemble: EnsembleConfig, agreed: EnsembleSignature, threads: int) -> Profile:
    """Measure the members with the fastest number of streams, and with other numbers where they have streams."""
    fastest = asyncio.run(members(ensemble, agreed, {"threads": threads}))
    profile = extended(profile, fastest)
    if all(isinstance(member, OpenVino) for member in ensemble.members):
        for streams in sorted({1, threads} - {curve.streams for curve in fastest.values()}):
            profile = extended(
                profile, asyncio.run(members(ensemble, agreed, {"threads": threads, "streams": streams}))
            )
    return profile


def servers(profile: Profile, config: Mapping[str, Any], photographs: Sequence[bytes], placement: Placement) -> Profile:
    """Measure what a server costs, and check predictions of it and of one with other settings."""
    as_configured = asking_all(placed(config, placement))
    given = every_member(as_configured)
    checks = list(profile.checks)
    with serving(as_configured) as url:
        few, many = (Watched.of(load(url, photographs, Closed(clients))) for clients in (FEW, MANY))
        found = served(profile, given, few, many, profile.served.get("inline"))
        profile = msgspec.structs.replace(profile, served={"inline": found, **profile.served, placement: found})
        checks += checked(url, photographs, given, profile, many.requests_per_s)
    other = tuned(as_configured, threads=None, ingress=OTHER)
    with serving(other) as url:
        most = load(url, photographs, Closed(MANY)).requests_per_s
        checks += checked(url, photographs, every_member(other), profile, most)
    if placement == "inline":
        profile = msgspec.structs.replace(profile, served={"inline": found})
    return msgspec.structs.replace(profile, checks=tuple(checks))


def checked(url: str, photographs: Sequence[bytes], given: Scenario, profile: Profile, most: float) -> Iterator[Check]:
    """Predict loads, measure them, and compare; a load of which requests failed is left out."""
    bare = msgspec.structs.replace(profile, checks=())
    if "separate" not in bare.served:
        bare = msgspec.structs.replace(bare, served={**bare.served, "separate": bare.served["inline"]})
    modes: list[Mode] = [*map(Closed, CLIENTS), *(Arrivals(share * most) for share in SHARES_OF_MOST)]
    for mode in modes:
        found = predict(given, bare, mode, clients_here=True)
        row = loaded(url, photographs, mode, SERVED_S)
        # A machine that is busy with other work may be overloaded by what it answered a minute ago.
        if row.failed or not row.requests:
            continue
        # The latencies of a load that is predicted to be too much are those of an endless queue.
        names = FIGURES if math.isfinite(found.p99_ms) else FIGURES[:1]
        yield Check(isinstance(mode, Closed), ratios(row, {name: getattr(found, name) for name in names}))


def load(url: str, photographs: Sequence[bytes], mode: Mode) -> Row:
    """Load a server for a profile.

    Raises:
        ScriptError: requests failed.
    """
    row = loaded(url, photographs, mode, SERVED_S)
    if row.failed or not row.requests:
        raise ScriptError(f"{row.failed} requests failed while it was profiled: {row.first_error}")
    return row


def facts(photographs: Sequence[bytes]) -> dict[str, str]:
    """Describe in words what the profile depends on."""
    import openvino as ov

    sizes = sorted(len(each) for each in photographs)
    return {
        "cpu": str(ov.Core().get_property("CPU", "FULL_DEVICE_NAME")),
        "cores": str(available_cpus()),
        "system": platform.platform(),
        "python": platform.python_version(),
        "openvino": ov.get_version(),
        "images": f"{len(photographs)}, of {sizes[len(sizes) // 2]:,} bytes (median)",
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    }
