"""Throughput by clients, replicas of the whole graph and cores, on one machine and across a network."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from deployments.cpus import available_cpus, usable
from lab.benchmark.systems import HTTP_PORT, OURS, running
from lab.benchmark.workloads import ROOT, Workload, changed, photographs, workload
from lab.experiments.experiment import declared
from lab.network import Machine, network
from lab.rows import REACHED, Part, Row, Rows, enough, highest, side_by_side
from scripts.errors import ScriptError

CLIENTS, ROUNDS = (1, 2, 4, 8, 16), 3
# A load has begun when so many bytes have come: more than the first request, which looks whether the server is there.
BEGUN, LOOK_EVERY_S = 100_000, 0.05


@dataclass(frozen=True)
class Size:
    """The size of a server: cores, replicas of the whole graph that divide them, and the clients' machine."""

    cores: int
    replicas: int
    machines: int = 1

    def edit(self, config: dict[str, Any]) -> None:
        """Change the Serve config of one process; each model computes with one thread."""
        cpus: Any = "auto" if self.replicas > 1 else None
        if self.cores < available_cpus():
            cpus = list(usable()[: self.cores])
        options = {"num_replicas": self.replicas, "ray_actor_options": {"num_cpus": 0.1}}
        changed({"cpus": cpus}, {"threads": 1}, options)(config)

    def load(self, seconds: float) -> Iterator[Row]:
        """Serve the workload, and load it by more and more clients: here, or in a network namespace of their own."""
        # Where machines can't be made, that is told before the workload is.
        machines: AbstractContextManager[Sequence[Machine | None]]
        machines = nullcontext([None, None]) if self.machines == 1 else network(2)
        with machines as (here, elsewhere):
            load = replace(workload("imagenet", "int8"), images=photographs("small"))
            megabits = sum(path.stat().st_size for path in load.images) / len(load.images) * 8 / 1e6
            with running(OURS["colocated"], load, self.edit, machine=here) as server:
                for clients in CLIENTS * ROUNDS:
                    if here is None or elsewhere is None:
                        found = server.load(load, "http", clients, seconds)
                        row = {name: found[name] for name in ("requests", "requests_per_s", "p50_ms", "p99_ms")}
                    else:
                        row = across(elsewhere, here, load, clients, seconds)
                    yield {"clients": clients, **row, "megabits_per_s": row["requests_per_s"] * megabits}


def across(client: Machine, server: Machine, load: Workload, clients: int, seconds: float) -> Row:
    """Load a server from another machine, and measure the Mb/s that its interface received and sent meanwhile.

    Raises ScriptError if the load generator failed, or a request did.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "load.json"
        flags = ("--concurrency", clients, "--seconds", seconds, "--json", file)
        command = (sys.executable, "-P", "-m", "ensemble_capacity.load", f"http://{server.address}:{HTTP_PORT}", *flags)
        options = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True, "cwd": ROOT}
        with client.start(*command, "--images", *load.images, **options) as process:
            there, back = _wire(server, process, seconds)
            _, error = process.communicate()
        if process.returncode:
            raise ScriptError(f"the clients could not ask: {error}")
        [row] = json.loads(file.read_text(encoding="utf-8"))["rows"]
    if row["failed"]:
        raise ScriptError(f"{row['failed']} requests failed: {row['first_error']}")
    times = {f"{name}_ms": row["percentiles_ms"][name] for name in ("p50", "p99")}
    counts = {name: row[name] for name in ("requests", "requests_per_s")}
    return {**counts, **times, "wire_there": there, "wire_back": back}


def _wire(server: Machine, process: subprocess.Popen[str], seconds: float) -> list[float]:
    """Measure the Mb/s that a server's interface received and sent in the middle half of a load."""
    silent, _ = server.traffic()
    while process.poll() is None and server.traffic()[0] < silent + BEGUN:
        time.sleep(LOOK_EVERY_S)
    time.sleep(seconds / 4)
    before, began = server.traffic(), time.perf_counter()
    time.sleep(seconds / 2)
    after, took = server.traffic(), time.perf_counter() - began
    return [8 * (late - early) / 1e6 / took for late, early in zip(after, before, strict=True)]


def parts(seconds: float) -> Sequence[Part]:
    """Serve one replica on one core; one on all, and one for each; and one across a network."""
    cores = available_cpus()
    sizes = dict.fromkeys([Size(1, 1), *(Size(cores, replicas) for replicas in (1, cores)), Size(cores, 1, 2)])
    return [Part(str(size), partial(size.load, seconds), asdict(size)) for size in sizes]


def compare(rows: Rows) -> Mapping[str, str]:
    """Compare what cores add, the bytes of an image on the wire, and the clients per replica that suffice."""
    own = enough(rows)
    alone = [row for row in own if (row["replicas"], row["machines"]) == (1, 1)]
    most = highest(alone, "requests_per_s", "cores")
    found = {}
    if len(most) > 1 and 1 in most:
        cores = max(most)
        rate = most[cores]["requests_per_s"]
        share = 100 * rate / cores / most[1]["requests_per_s"]
        told = f"with {cores} cores, {share:.0f} % of {cores} times one core's; no machine was added"
        found["highest rate of linear scaling by added machines"] = f"{rate:.0f} requests/s {told}"
        found["predictions at that rate"] = f"{2 * rate:.0f} predictions/s, two per request"
    if wired := [row for row in own if "wire_there" in row]:
        bits = max(wired, key=lambda row: row["requests_per_s"])
        traffic = 900 * bits["wire_there"] / bits["requests_per_s"]
        there = f"{bits['wire_there']:.1f} Mb/s at {bits['requests_per_s']:.0f}"
        found["traffic of about 900 images per second"] = f"{there}, so {traffic:.0f} Mb/s at 900"
    if own:
        best = max(own, key=lambda row: row["requests_per_s"])
        alike = [row for row in own if all(row[name] == best[name] for name in ("cores", "replicas", "machines"))]
        level = next(row for row in alike if row["requests_per_s"] >= REACHED * best["requests_per_s"])
        each = level["clients"] / level["replicas"]
        told = f"{each:g} per replica reach {100 * REACHED:.0f} % of the highest rate"
        found["clients per pod at which throughput levels off"] = told
    return found


def tabled(rows: Rows) -> Rows:
    """Put the loads of a size side by side."""
    loads = [{**row, "load": f"{row.get('clients')} clients"} for row in rows]
    return side_by_side(loads, "load", "machines", "cores", "replicas")


SCALING = declared("scaling", parts=parts, ours=lambda row: True, tabled=tabled, computed=compare)
