"""Latency and throughput by images per request: HTTP, gRPC, shared memory, and the models in one process."""

from __future__ import annotations

import json
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
from lab.rows import REACHED, Part, Row, Rows, highest, side_by_side
from scripts.errors import ScriptError
from scripts.shipped import CHECKOUT

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
    """Find where the throughput of each way stops growing."""
    told = f"{100 * REACHED:.0f} %"
    found = {
        f"images per request at the bottleneck over {way}": f"{level(rows, way)} images reach {told} of the best"
        for way in ("HTTP", "gRPC")
    }
    rates = {row["images"]: row["images_per_s"] for row in rows if row["way"] == SHARED}
    last = ", ".join(f"{rate:.0f} images/s with {size}" for size, rate in sorted(rates.items())[-3:])
    verdict = "no plateau up to" if level(rows, SHARED) == max(rates) else f"a plateau from {level(rows, SHARED)} to"
    return found | {"shared memory": f"{verdict} {max(rates)} images: {last}"} | locality()


def level(rows: Rows, way: str) -> int:
    """Find the fewest images per request that reach nearly the highest throughput of a way."""
    rates: dict[int, float] = {row["images"]: row["images_per_s"] for row in rows if row["way"] == way}
    return min(size for size, rate in rates.items() if rate >= REACHED * max(rates.values()))


def locality() -> dict[str, str]:
    """Take the latency of one client with and without a server from the stored benchmark of the same models."""
    alone = {
        (row["system"], row["placement"], row["protocol"]): row["p50_ms"]
        for row in json.loads((CHECKOUT / "docs" / "benchmarks" / "embedded.json").read_text(encoding="utf-8"))
        if row["clients"] == 1
    }
    return {
        "a call in the process of the model": f"{alone['limit', None, None]:.1f} ms, one image at a time",
        "the call from another machine": (
            f"{alone['ours', 'colocated', 'http']:.1f} ms over HTTP, one client, on the same machine"
        ),
    }


BATCHES = declared(
    "batches",
    parts=parts,
    ours=lambda row: row["peak"],
    shown=with_peaks,
    tabled=lambda rows: side_by_side(rows, "way", "images"),
    computed=compare,
)
