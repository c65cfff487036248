"""Latency and throughput by images per request: HTTP, gRPC, shared memory, and the models in one process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tqdm import tqdm

from deployments.cpus import available_cpus
from ensemble_capacity.load.load import Closed, Target
from ensemble_capacity.load.measure import Duration
from ensemble_capacity.load.measure import measure as measured
from ensemble_capacity.load.protocols import Protocol
from ensemble_capacity.load.tensors import Input, OpenInference
from ensemble_serving.transports import Request
from lab.benchmark.__main__ import Limit
from lab.benchmark.systems import GRPC_PORT, HTTP_PORT, OURS, running
from lab.benchmark.workloads import Workload, workload
from lab.experiments.asking import REGION, region, register, share_memory
from lab.experiments.experiment import Experiment, Groups, Here, Part, Rows, check_photographs
from lab.experiments.forms import shared_jpegs
from lab.pictures.chart import Bar
from scripts.errors import ScriptError
from scripts.results import Table

SIZES, CLIENTS, WARM_UP_S = (1, 2, 4, 8, 16, 32, 64), 2, 1.0
HTTP_URL = f"http://127.0.0.1:{HTTP_PORT}"
IN_PROCESS = "in one process"
IMAGE = (Input("image", "BYTES", (-1,)),)
PEAKS = {
    "HTTP": "images per request at the peak over HTTP",
    "gRPC": "images per request at the peak over gRPC",
    IN_PROCESS: "images per request at the peak in one process",
}


@dataclass(frozen=True)
class Shared(OpenInference):
    """JPEGs that lie in shared memory, of which a request names the place."""

    file: Path = Path()

    def request(self, images: Sequence[bytes]) -> Request:
        """See `Protocol.request`; all requests name the same place."""
        return shared_jpegs(self.file, REGION)(images, self.model)


def measure(seconds: float) -> Sequence[Part]:
    """One server for all ways, whose turns alternate; and the same without a server."""
    load = workload("embedded", "int8")
    return [Part("served", partial(served, load, seconds)), Part("alone", partial(alone, load, seconds))]


def served(load: Workload, seconds: float) -> Iterator[dict[str, Any]]:
    """Each way with each number of images per request."""
    images = tuple(path.read_bytes() for path in load.images)
    with running(OURS["colocated"], load, share_memory), region(4 * max(SIZES) * max(map(len, images))) as file:
        register(HTTP_URL, file)
        ways: dict[str, Protocol] = {
            "HTTP": OpenInference("ensemble", is_grpc=False, shapes={}, binary=True, inputs=IMAGE),
            "gRPC": OpenInference("ensemble", is_grpc=True, shapes={}, inputs=IMAGE),
            "shared memory": Shared("ensemble", is_grpc=False, shapes={}, inputs=IMAGE, file=file),
        }
        for size in tqdm(SIZES, unit="size"):
            for way, protocol in ways.items():
                url = f"grpc://127.0.0.1:{GRPC_PORT}" if way == "gRPC" else HTTP_URL
                # What lies in shared memory is one request's: another one would overwrite it.
                sent = images if way != "shared memory" else images[:1]
                row = measured(Target(url, protocol, sent, batch=size), Closed(CLIENTS), Duration(WARM_UP_S, seconds))
                if row.failed or not row.requests:
                    raise ScriptError(f"{way}, {size} images: {row.failed} failed: {row.first_error}")
                found = {"images_per_s": row.images_per_s, "p50_ms": row.percentiles_ms["p50"]}
                yield {"way": way, "images": size, **found}


def alone(load: Workload, seconds: float) -> Rows:
    """The same images through the same models in one process, without a server, one batch after the other."""
    found = Limit(load, SIZES, seconds, [f"{available_cpus()}:1:{size}" for size in SIZES]).measure()
    return [
        {"way": IN_PROCESS, "images": size, "images_per_s": each["requests_per_s"], "p50_ms": each["p50_ms"]}
        for size, each in found.items()
    ]


def peaks(rows: Rows) -> dict[str, dict[str, Any]]:
    """The row of the most images per second of each way."""
    return {row["way"]: row for row in sorted(rows, key=lambda row: row["images_per_s"])}


def compare(rows: Rows) -> Mapping[str, Here]:
    """The peaks."""
    differs = "members of 32x32 pixels instead of ImageNet's, two clients, two cores"
    return {
        PEAKS[way]: Here(row["images"], f"{row['images']} images, at {row['images_per_s']:.0f} images/s", differs)
        for way, row in peaks(rows).items()
        if way in PEAKS
    }


def table(rows: Rows) -> Table:
    """A line for each number of images."""
    ways = list(dict.fromkeys(row["way"] for row in rows))
    lines = []
    for size in SIZES:
        own = {row["way"]: row for row in rows if row["images"] == size}
        pairs = ((f"{own[way]['images_per_s']:.0f}", f"{own[way]['p50_ms']:.1f}") for way in ways)
        lines.append([str(size), *(cell for pair in pairs for cell in pair)])
    heads = (head for way in ways for head in (f"{way}, images/s", f"{way}, p50 ms"))
    return Table(("images per request", *heads), lines, words=())


def picture(rows: Rows) -> Groups:
    """Throughput by images per request, a group for each way."""
    best, groups = peaks(rows), []
    for way, peak in best.items():
        bars = []
        for row in (row for row in rows if row["way"] == way):
            text = f"{row['images_per_s']:.0f}"
            bars.append(Bar(f"{row['images']} images", row["images_per_s"], text, ours=row is peak))
        groups.append((f"{way}{' (reported peak: 16)' * (way == 'HTTP')}{' (reported: 8)' * (way == 'gRPC')}", bars))
    return groups


BATCHES = Experiment(
    "batches",
    "Images per second by images per request; the peak is coloured",
    f"Images of 15 KB, models of 32x32 in int8, {CLIENTS} clients, one process",
    check_photographs,
    measure,
    table,
    compare,
    picture,
    seconds=3.0,
)
