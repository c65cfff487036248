"""What was measured of models and of a machine, and is kept in a file: all that a prediction needs to know."""

from __future__ import annotations

import bisect
from pathlib import Path
from typing import Literal

import msgspec

from scripts.errors import ScriptError

Placement = Literal["inline", "separate"]
# Of requests, by their latency: at these shares it is known of a load.
SHARES = (0.0, 0.5, 0.9, 0.95, 0.99, 1.0)


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

    def at(self, images: int) -> tuple[float, float, float]:
        """CPU time and duration of a batch, seconds, and the factor of computing together; between points linear."""
        sizes = [point.images for point in self.points]
        if len(sizes) == 1 or images >= sizes[-1]:
            last, scale = self.points[-1], images / sizes[-1]
            return last.cpu_ms * scale / 1000, last.wall_ms * scale / 1000, (self.together or (1.0,))[-1]
        above = max(1, bisect.bisect_left(sizes, images))
        low, high = self.points[above - 1], self.points[above]
        part = max(0.0, (images - low.images) / (high.images - low.images))
        factors = self.together[above - 1 : above + 1] or (1.0, 1.0)
        return (
            (low.cpu_ms + part * (high.cpu_ms - low.cpu_ms)) / 1000,
            (low.wall_ms + part * (high.wall_ms - low.wall_ms)) / 1000,
            factors[0] + part * (factors[1] - factors[0]),
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
        speed: how many times the throughput was reached that the cores would allow, if only what is known took time.
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


class Profile(msgspec.Struct, frozen=True):
    """A profile.

    Attributes:
        machine: its facts, in words.
        cores: that could be used.
        nodes: each node's curves by the name of the member or of the transformer: of each number of threads with the
            fastest number of streams, and then with others.
        served: what a server costs, by placement.
    """

    machine: dict[str, str]
    cores: int
    nodes: dict[str, tuple[Curve, ...]]
    served: dict[Placement, Served]

    def curve(self, node: str, threads: int, streams: int | None = None) -> Curve:
        """A node's curve with so many threads, or with the most that were measured and are not more.

        Args:
            node: the member's name, or the transformer's.
            threads: that compute.
            streams: that the configuration names; None for the fastest, and so it is where those were not measured.

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
        """The numbers of streams that were measured of a node with so many threads, but for the fastest."""
        return [curve.streams for curve in self.nodes[node] if curve.threads == threads][1:]


def read(file: Path) -> Profile:
    """A profile of a file.

    Raises:
        ScriptError: it is none.
    """
    try:
        return msgspec.json.decode(file.read_bytes(), type=Profile)
    except msgspec.MsgspecError as err:
        raise ScriptError(f"{file} is no profile of this version: {err}; measure again: --measure") from err


def write(profile: Profile, file: Path) -> None:
    """Keep a profile in a file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(msgspec.json.format(msgspec.json.encode(profile)) + b"\n")
