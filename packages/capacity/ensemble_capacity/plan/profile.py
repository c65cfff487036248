"""The profile of a machine and of models, which is kept in a file: everything that a prediction is made from."""

from __future__ import annotations

import bisect
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from deployments.cpus import available_cpus
from deployments.members.openvino_autotune import folder
from scripts import configuration
from scripts.errors import ScriptError

Placement = Literal["inline", "separate"]
# The shares of requests whose latency is kept of a load.
SHARES = (0.0, 0.5, 0.9, 0.95, 0.99, 1.0)
MEDIAN = SHARES.index(0.5)
# The figures of a prediction that have an interval.
SERVED: tuple[Placement, ...] = ("inline", "separate")
FIGURES = ("requests_per_s", "p50_ms", "p99_ms")


class Point(msgspec.Struct, frozen=True):
    """A batch of so many images: CPU time and duration, milliseconds, each the median of several."""

    images: int
    cpu_ms: float
    wall_ms: float


class Curve(msgspec.Struct, frozen=True):
    """A node, alone on the machine, by the size of its batches.

    Attributes:
        threads: that compute.
        streams: how many parts of a batch are computed at a time.
        points: by images, ascending.
        together: how much more CPU time all members take when they compute at the same time, at each point; 1 is none.
    """

    threads: int
    streams: int
    points: tuple[Point, ...]
    together: tuple[float, ...] = ()

    def at(self, images: float) -> tuple[float, float, float]:
        """Interpolate CPU time and duration of a batch, seconds, and the factor of computing together."""
        sizes, factors = [point.images for point in self.points], self.together or (1.0,) * len(self.points)
        if images <= sizes[0] or images >= sizes[-1]:
            end = 0 if images <= sizes[0] else -1
            # Less than an image on average is an image now and then.
            point, scale = self.points[end], images / sizes[end] / 1000
            return point.cpu_ms * scale, point.wall_ms * scale, factors[end]
        above = bisect.bisect_left(sizes, images)
        low, high = self.points[above - 1], self.points[above]
        part = (images - low.images) / (high.images - low.images)
        return (
            (low.cpu_ms + part * (high.cpu_ms - low.cpu_ms)) / 1000,
            (low.wall_ms + part * (high.wall_ms - low.wall_ms)) / 1000,
            factors[above - 1] + part * (factors[above] - factors[above - 1]),
        )


class Overhead(msgspec.Struct, frozen=True):
    """CPU time of a process besides its nodes' work, milliseconds per batch and per image."""

    batch_ms: float = 0.0
    image_ms: float = 0.0


class Served(msgspec.Struct, frozen=True):
    """What a server costs besides its nodes' work, in one placement of them.

    Attributes:
        ingress: of the ingress' process.
        node: of each separate node's process, for a call to it.
        proxy_ms: CPU time of HAProxy, per request.
        client_ms: CPU time of the load generator, per request.
        background: cores that everything else takes, on average.
        delays_ms: of a request, in which nothing computes for it, as when threads and processes wake up; at `SHARES`.
        ingress_mb: memory of a replica of the ingress, with its inline nodes.
        node_mb: memory of a separate node's replica, on average.
        rest_mb: memory of everything else.
        speed: the measured rate of many clients, as a multiple of the rate that the known costs would allow.
    """

    ingress: Overhead
    node: Overhead
    proxy_ms: float
    client_ms: float
    background: float
    delays_ms: tuple[float, ...]
    ingress_mb: float
    node_mb: float
    rest_mb: float
    speed: float = 1.0


class Check(msgspec.Struct, frozen=True):
    """A load that was predicted and measured while the profile was made, besides the loads that it is made from.

    Attributes:
        is_closed: whether it was a closed loop.
        ratios: the measured value as a multiple of the predicted one, by figure.
    """

    is_closed: bool
    ratios: dict[str, float]


class Profile(msgspec.Struct, frozen=True):
    """A profile.

    Attributes:
        machine: its facts, in words.
        cores: that could be used.
        nodes: each node's curves by the name of the member or of the transformer: of each number of threads with the
            fastest number of streams, and then with others.
        served: what a server costs, by placement.
        checks: how far measured loads were from their predictions.
        others: cores that other processes used while each part was measured, and which used the most.
        is_complete: whether every part is measured.
    """

    machine: dict[str, str]
    cores: int
    nodes: dict[str, tuple[Curve, ...]] = {}
    served: dict[Placement, Served] = {}
    checks: tuple[Check, ...] = ()
    others: tuple[tuple[float, str], ...] = ()
    is_complete: bool = False

    def curve(self, node: str, threads: int, streams: int | None = None) -> Curve:
        """Find a node's curve with `threads` threads, or with the most measured threads below that number.

        Args:
            node: the member's name, or the transformer's.
            threads: that compute.
            streams: that the configuration names; None for the fastest, which also replaces those not measured.

        Raises:
            ScriptError: the node was not measured.
        """
        if node not in self.nodes:
            raise ScriptError(f"the profile has no {node}, but {', '.join(self.nodes)}; measure again: --measure")
        curves = sorted(self.nodes[node], key=lambda curve: curve.threads)
        most = max(curve.threads for curve in curves if curve.threads <= max(threads, curves[0].threads))
        same = [curve for curve in curves if curve.threads == most]
        return next((curve for curve in same if curve.streams == streams), same[0])

    def streams(self, node: str, threads: int) -> list[int]:
        """List the measured numbers of streams of a node with `threads` threads, but for the fastest."""
        return [curve.streams for curve in self.nodes[node] if curve.threads == threads][1:]

    def noise(self) -> str:
        """Describe the work of other processes during the measurements; empty if there was little of it."""
        cores, name = max(self.others, default=(0.0, ""))
        if cores < 0.05 * self.cores:
            return ""
        return (
            f"While the profile was measured, other processes took up to {cores / self.cores:.0%} of the cores"
            f"{f' (the most: {name})' if name else ''}. Predictions are for a machine that is as busy."
        )


def read(file: Path) -> Profile:
    """Read a profile.

    Raises:
        ScriptError: the file has none.
    """
    try:
        return msgspec.json.decode(file.read_bytes(), type=Profile)
    except msgspec.MsgspecError as err:
        raise ScriptError(f"{file} is no profile of this version: {err}; measure again: --measure") from err


def write(profile: Profile, file: Path) -> None:
    """Keep a profile in a file, in one step: an interrupted command leaves the file before or the new one."""
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_suffix(".part")
    part.write_bytes(msgspec.json.format(msgspec.json.encode(profile)) + b"\n")
    part.replace(file)


def kept_file(application: Mapping[str, Any], images: Sequence[bytes]) -> Path:
    """Name the file of a profile by what it depends on: the models' files, the images and the machine.

    Placements, threads, batches and the like are no part of it: configurations of the same models share a profile.
    """
    import openvino as ov

    config = configuration.check_arguments(application)
    models = sorted(member.identity(config.model_repository) for member in config.members)
    sent = [hashlib.sha256(each).hexdigest() for each in images]
    machine = ov.Core().get_property("CPU", "FULL_DEVICE_NAME"), available_cpus(), ov.get_version()
    return folder() / f"plan-{hashlib.sha256(repr((models, sent, machine)).encode()).hexdigest()[:16]}.json"
