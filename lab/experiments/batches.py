"""Latency and throughput by images per request: HTTP, gRPC, shared memory, and the models in one process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tqdm import tqdm

from deployments.cpus import available_cpus
from ensemble_capacity.load.load import Closed, Target
from ensemble_capacity.load.measure import Duration, measure
from ensemble_capacity.load.tensors import OpenInference
from ensemble_interop.remote.tensors import Tensor
from ensemble_serving.transports import Request
from lab.benchmark.limit import Limit, Setting
from lab.benchmark.systems import OURS, URLS, running
from lab.benchmark.workloads import Workload, workload
from lab.experiments.experiment import declared, figures
from lab.experiments.forms import placed, region, register, share_memory
from lab.rows import Part, Row, Rows, highest
from scripts.errors import ScriptError

SIZES, CLIENTS, WARM_UP_S, ROUNDS = (1, 4, 8, 16, 32, 64), 2, 1.0, 3
SHARED, ALONE = "shared memory", "in one process"
IMAGE = (Tensor("image", "BYTES", (-1,)),)


@dataclass(frozen=True)
class Shared(OpenInference):
    """JPEGs that lie in shared memory, of which a request names the place."""

    file: Path = Path()

    def request(self, images: Sequence[bytes]) -> Request:
        """See `RequestBuilder.request`; all requests name the same place."""
        return placed(self.file, images, self.model)


def parts(seconds: float) -> Sequence[Part]:
    """Make one part of all ways on one server, in turns, and one without a server."""
    load = workload("embedded", "int8")
    return [
        Part("served", partial(served, load, seconds)),
        Part("alone", partial(alone, load, seconds)),
    ]


def served(load: Workload, seconds: float) -> Iterator[Row]:
    """Send each number of images per request by each way."""
    images = tuple(path.read_bytes() for path in load.images)
    with running(OURS["colocated"], load, share_memory), region(4 * max(SIZES) * max(map(len, images))) as file:
        register(URLS["http"], file)
        http = OpenInference("ensemble", is_grpc=False, shapes={}, binary=True, inputs=IMAGE)
        grpc = OpenInference("ensemble", is_grpc=True, shapes={}, inputs=IMAGE)
        # What lies in shared memory is one request's: another one would overwrite it.
        ways = {
            "HTTP": partial(Target, URLS["http"], http, images),
            "gRPC": partial(Target, URLS["grpc"], grpc, images),
            SHARED: partial(
                Target, URLS["http"], Shared("ensemble", is_grpc=False, shapes={}, inputs=IMAGE, file=file), images[:1]
            ),
        }
        for size in tqdm(SIZES, unit="size"):
            for way, target in ways.items():
                row = measure(target(batch=size), Closed(CLIENTS), Duration(WARM_UP_S, seconds))
                if row.failed or not row.requests:
                    raise ScriptError(f"{way}, {size} images: {row.failed} failed: {row.first_error}")
                found = figures(row, "images_per_s", "p50_ms")
                yield {"way": way, "images": size, "answered": size * row.requests, **found}


def alone(load: Workload, seconds: float) -> Rows:
    """Compute the same images by the same models in one process, without a server, one batch after the other."""
    found = Limit(load, SIZES, seconds, [Setting(available_cpus(), 1, size) for size in SIZES]).measure()
    return [
        {
            "way": ALONE,
            "images": size,
            "answered": round(seconds * each["requests_per_s"]),
            "images_per_s": each["requests_per_s"],
            "p50_ms": each["p50_ms"],
        }
        for size, each in found.items()
    ]


def with_peaks(rows: Rows) -> Rows:
    """Mark the row of the most images per second of each way."""
    most = highest(rows, "images_per_s", "way")
    return [{**row, "peak": row is most[row["way"]]} for row in rows]


def compare(rows: Rows) -> Mapping[str, str]:
    """Find the peaks, and what a single image takes with and without a server."""
    peak = {row["way"]: row for row in rows if row["peak"]}
    single = {row["way"]: row["p50_ms"] for row in rows if row["images"] == 1}
    last = {row["way"]: row["images_per_s"] for row in rows if row["images"] == max(SIZES)}
    found = {
        f"images per request at the peak over {way}": f"{peak[way]['images']} images, at "
        f"{peak[way]['images_per_s']:.0f} images/s"
        for way in ("HTTP", "gRPC")
    }
    top = f"{peak[SHARED]['images_per_s']:.0f} images/s with {peak[SHARED]['images']} images"
    protocols = sorted((way for way in single if way != ALONE), key=single.__getitem__)
    return found | {
        "shared memory": f"a plateau: {top}, {last[SHARED]:.0f} with {max(SIZES)}",
        "fastest protocol of three for one image": ", ".join(f"{way} {single[way]:.1f} ms" for way in protocols),
    }


BATCHES = declared("batches", parts=parts, ours=lambda row: row["peak"], shown=with_peaks, computed=compare)
