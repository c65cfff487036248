"""Makes a profile: short measurements of the nodes in this process, and of the server, started once per placement."""

from __future__ import annotations

import asyncio
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
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
from ensemble_capacity.load.load import Closed
from ensemble_capacity.plan.fitting import Watched, served
from ensemble_capacity.plan.profile import Curve, Placement, Point, Profile, Served
from ensemble_capacity.plan.server import loaded, serving
from ensemble_capacity.plan.variant import placed
from graph.config import EnsembleConfig
from graph.defaults import make
from graph.signature import Agreement
from scripts import configuration
from scripts.errors import ScriptError

SIZES = (1, 4, 16)
# A measurement takes so long, and of each kind of batch at least so many are executed.
EACH_S, LEAST = 0.4, 5
# What the server is asked by: one client, whose images go alone, and so many that batches are large.
FEW, MANY = 1, 32
SERVED_S = 4.0
Log = Callable[[str], None]


@dataclass(frozen=True)
class Timed:
    """Executions of a batch: median CPU time, and the duration that a quarter of them do not exceed, milliseconds."""

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
    return Timed(statistics.median(cpu), statistics.quantiles(wall, n=4)[0])


def images(payload: Any, count: int) -> Batch[Any]:
    """A batch of so many images."""
    return Batch(payload, tuple(Item() for _ in range(count)))


async def nodes(application: Mapping[str, Any], photographs: Sequence[bytes], log: Log) -> dict[str, tuple[Curve, ...]]:
    """The curves of each node by name."""
    config, agreed = configuration.check(application)
    cores, names = available_cpus(), [member.name for member in config.members]
    largest = config.ingress.max_batch_size
    sizes = sorted({min(size, largest) for size in (*SIZES, largest)})
    decode = JpegTransformer(TransformerSettings(), agreed.wanted, cores)
    points = []
    for size in sizes:
        log(f"decoding, {size} images")
        encoded = [photographs[i % len(photographs)] for i in range(size)]
        taken = await timed([decode], images(encoded, size))
        points.append(Point(size, taken.cpu_ms, taken.wall_ms))
    curves: dict[str, tuple[Curve, ...]] = {TRANSFORMER: (Curve(cores, cores, tuple(points)),)}
    for threads in sorted({1, max(1, cores // len(names)), cores}):
        fastest = await members(config, agreed, sizes, {"threads": threads}, log)
        found, others = [fastest], {1, threads} - {curve.streams for curve in fastest.values()}
        if all(isinstance(member, OpenVino) and member.streams is None for member in config.members):
            for streams in sorted(others):
                found.append(await members(config, agreed, sizes, {"threads": threads, "streams": streams}, log))
        curves |= {name: (*curves.get(name, ()), *(each[name] for each in found)) for name in names}
    return curves


async def members(
    config: EnsembleConfig, agreed: Agreement, sizes: Sequence[int], settings: Mapping[str, int], log: Log
) -> dict[str, Curve]:
    """A curve of each member with these settings."""
    made = {}
    for member in config.members:
        assert isinstance(member, LocalMember)
        wanted = agreed.preprocessing[member.name]
        assert isinstance(wanted, Preprocessing)
        given, gets = member.model_copy(update=dict(settings)), agreed.interface(member.name)
        made[member.name] = make(given, 1, config.model_repository, gets, sizes[-1]), wanted.size
    alone: dict[str, list[Point]] = {name: [] for name in made}
    together, streams = [], {}
    for size in sizes:
        log(f"members with {', '.join(f'{count} {what}' for what, count in settings.items())}, {size} images")
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


def measure(config: Mapping[str, Any], photographs: Sequence[bytes], log: Log = print) -> Profile:
    """Measure a profile of the application in a Serve config; see `measure_nodes` and `measure_server`."""
    return measure_server(measure_nodes(config, photographs, log), config, photographs, log)


def measure_nodes(
    config: Mapping[str, Any], photographs: Sequence[bytes], log: Log = print, like: Profile | None = None
) -> Profile:
    """Measure each node of the application in a Serve config, in this process.

    Args:
        config: the Serve config.
        photographs: encoded images, which are decoded and sent in turn.
        log: gets a line before each measurement.
        like: a profile of other versions of the same models: what the server costs besides them is taken of it.

    Raises:
        ConfigurationError: the application can't be served.
    """
    application = next(configuration.ours(config))
    curves = asyncio.run(nodes(application, photographs, log))
    return Profile(facts(photographs), available_cpus(), curves, like.served if like else {})


def measure_server(
    profile: Profile, config: Mapping[str, Any], photographs: Sequence[bytes], log: Log = print
) -> Profile:
    """Add to a profile of the nodes what a server of them costs.

    Raises:
        ScriptError: a server did not start, or refused requests.
    """
    found: dict[Placement, Served] = {}
    for placement in ("inline", "separate"):
        changed = asking_all(placed(config, placement))
        watched: list[Watched] = []
        log(f"a server, every node {placement}")
        with serving(changed) as url:
            for clients in (FEW, MANY):
                row = loaded(url, photographs, Closed(clients), SERVED_S)
                if row.failed or not row.requests:
                    raise ScriptError(f"{row.failed} requests failed while it was profiled: {row.first_error}")
                watched.append(Watched.of(row))
        found[placement] = served(profile, changed, watched, found.get("inline"))
    return msgspec.structs.replace(profile, served=found)


def asking_all(config: dict[str, Any]) -> dict[str, Any]:
    """The config, in whose cascade every member gets every image: how many would exit is not known here."""
    ensemble = next(configuration.ours(config))["args"].get("ensemble") or {}
    if cascade := ensemble.get("cascade"):
        cascade["exit_at"] = [1.0] * len(cascade["exit_at"])
    return config


def facts(photographs: Sequence[bytes]) -> dict[str, str]:
    """What the profile depends on, in words."""
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
