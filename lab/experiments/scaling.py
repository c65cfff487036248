"""Throughput by clients, replicas of the whole graph and cores, with the Universal Scalability Law fitted to it."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from deployments.cpus import available_cpus, usable
from lab.benchmark.systems import HTTP_PORT, OURS, running
from lab.benchmark.workloads import ROOT, Workload, workload
from lab.experiments.experiment import Experiment, Groups, Here, Part, Rows, check_photographs
from lab.experiments.scalability import Law, held_out
from lab.network import Machine, network
from lab.pictures.chart import Bar
from scripts.errors import ScriptError
from scripts.results import Table

CLIENTS, BEYOND = (1, 2, 4, 8, 16, 32), 64
# Of N times the rate of one client, what still counts as linear; of the highest rate, what counts as reached.
LINEAR, REACHED = 0.9, 0.95
# A load has begun when so many bytes have come: more than the first request, which looks whether the server is there.
BEGUN, LOOK_EVERY_S = 100_000, 0.05
HEADINGS = (
    "machines",
    "cores",
    "replicas",
    "clients",
    "requests/s",
    "p50, ms",
    "Mb/s of images",
    "wire to the server, Mb/s",
    "wire back, Mb/s",
    "the law",
    "95 % interval",
)


@dataclass(frozen=True)
class Size:
    """What the server has: cores, replicas of the whole graph that share them, and whether clients are elsewhere."""

    cores: int
    replicas: int
    machines: int = 1

    @property
    def name(self) -> str:
        """For people."""
        cores = "1 core" if self.cores == 1 else f"{self.cores} cores"
        replicas = "1 replica" if self.replicas == 1 else f"{self.replicas} replicas"
        return f"{cores}, {replicas}{', two machines' * (self.machines > 1)}"

    def edit(self, config: dict[str, Any]) -> None:
        """Change the Serve config of one process; each model computes with one thread."""
        application = config["applications"][0]
        if self.cores < available_cpus():
            application["args"]["cpus"] = list(usable()[: self.cores])
        for member in application["args"]["members"]:
            member["threads"] = 1
        [ingress] = application["deployments"]
        ingress.update(num_replicas=self.replicas, ray_actor_options={"num_cpus": 0.1})


def sizes() -> list[Size]:
    """One replica on one core, as `cpus` of several are refused; one, two and four on all; one across a network."""
    cores = available_cpus()
    return list(dict.fromkeys([Size(1, 1), *(Size(cores, replicas) for replicas in (1, 2, 4)), Size(cores, 1, 2)]))


def measure(seconds: float) -> Sequence[Part]:
    """Serve each size, and load it by more and more clients."""
    measured = {1: _measured, 2: _apart}
    return [Part(size.name, partial(measured[size.machines], size, seconds), asdict(size)) for size in sizes()]


def _apart(size: Size, seconds: float) -> Iterator[dict[str, float]]:
    """The server in one network namespace, and the clients in another."""
    load = workload("embedded", "int8")
    with network(2) as [server, client], running(OURS["colocated"], load, size.edit, machine=server):
        for warms_up, clients in ((True, max(CLIENTS)), *((False, each) for each in CLIENTS)):
            row, (there, back) = _loaded(client, server, load, clients, seconds)
            if not warms_up:
                figures = _figures(load, clients, row["requests_per_s"], row["percentiles_ms"]["p50"])
                yield {**figures, "wire_there": there, "wire_back": back}


def _loaded(
    client: Machine, server: Machine, load: Workload, clients: int, seconds: float
) -> tuple[dict[str, Any], list[float]]:
    """A closed loop from another machine, and the Mb/s that the server's interface received and sent meanwhile.

    Raises:
        ScriptError: it failed, or a request did.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "load.json"
        flags = ("--concurrency", clients, "--seconds", seconds, "--warm-up", 0, "--json", file)
        command = (sys.executable, "-P", "-m", "ensemble_capacity.load", f"http://{server.address}:{HTTP_PORT}", *flags)
        options = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True, "cwd": ROOT}
        with client.start(*command, "--images", *load.images, **options) as process:
            wire = _wire(server, process, seconds)
            _, error = process.communicate()
        if process.returncode:
            raise ScriptError(f"the clients could not ask: {error}")
        [row] = json.loads(file.read_text(encoding="utf-8"))["rows"]
    if row["failed"]:
        raise ScriptError(f"{row['failed']} requests failed: {row['first_error']}")
    return row, wire


def _wire(server: Machine, process: subprocess.Popen[str], seconds: float) -> list[float]:
    """The Mb/s that a server's interface received and sent in the middle half of a load."""
    silent, _ = server.traffic()
    while process.poll() is None and server.traffic()[0] < silent + BEGUN:
        time.sleep(LOOK_EVERY_S)
    time.sleep(seconds / 4)
    before, began = server.traffic(), time.perf_counter()
    time.sleep(seconds / 2)
    after, took = server.traffic(), time.perf_counter() - began
    return [8 * (late - early) / 1e6 / took for late, early in zip(after, before, strict=True)]


def _measured(size: Size, seconds: float) -> Iterator[dict[str, float]]:
    load = workload("embedded", "int8")
    with running(OURS["colocated"], load, size.edit) as server:
        for clients in CLIENTS:
            found = server.load(load, "http", clients, seconds)
            yield _figures(load, clients, found["requests_per_s"], found["p50_ms"])


def _figures(load: Workload, clients: int, rate: float, p50_ms: float) -> dict[str, float]:
    """What is stored of a load, with the Mb/s of its images alone."""
    image = sum(path.stat().st_size for path in load.images) / len(load.images) * 8 / 1e6
    return {"clients": clients, "requests_per_s": rate, "p50_ms": p50_ms, "megabits_per_s": rate * image}


def of(rows: Rows, size: Size) -> Rows:
    """What was measured of a size, by clients."""
    return [row for row in rows if _size(row) == size and "error" not in row]


def _size(row: Mapping[str, Any]) -> Size:
    return Size(row["cores"], row["replicas"], row.get("machines", 1))


def measured_sizes(rows: Rows) -> list[Size]:
    """Those in the rows."""
    return list(dict.fromkeys(map(_size, rows)))


def table(rows: Rows) -> Table:
    """What was measured, what the law says of it, and of twice as many clients, which is called extrapolated."""
    lines = []
    notes = [f"{_size(row).name}: {row['error']}" for row in rows if "error" in row]
    for size in measured_sizes(rows):
        own = of(rows, size)
        counts, rates = [row["clients"] for row in own], [row["requests_per_s"] for row in own]
        words = [str(size.machines), str(size.cores), str(size.replicas)]
        law = _law(own)
        for row in own:
            numbers = [f"{row['requests_per_s']:.0f}", f"{row['p50_ms']:.1f}", f"{row['megabits_per_s']:.1f}"]
            numbers += [f"{row[name]:.1f}" if name in row else "" for name in ("wire_there", "wire_back")]
            lines.append([*words, str(row["clients"]), *numbers, *_said(law, row["clients"])])
        if law is not None:
            lines.append([*words, f"{BEYOND}, extrapolated", *[""] * 5, *_said(law, BEYOND)])
            notes.append(
                f"{size.name}: contention {law.contention:.3f}, coherence "
                f"{law.coherence:.5f}; {_missed(counts, rates)}."
            )
    return Table(HEADINGS, lines, words=(), notes=notes)


def _law(own: Rows) -> Law | None:
    """The law of a size; None if a load is missing, or no law fits."""
    if len(own) < len(CLIENTS):
        return None
    with suppress(ScriptError):
        return Law.fit([row["clients"] for row in own], [row["requests_per_s"] for row in own])
    return None


def _missed(counts: list[int], rates: list[float]) -> str:
    try:
        error = held_out(counts, rates)
    except ScriptError:
        return f"no law fits what is left without {counts[-1]} clients"
    return f"fitted without {counts[-1]} clients, the law misses their rate by {100 * error:+.0f} %"


def _said(law: Law | None, clients: int) -> list[str]:
    if law is None:
        return ["", ""]
    middle, low, high = law.at(clients)
    return [f"{middle:.0f}", f"{low:.0f} to {high:.0f}"]


def compare(rows: Rows) -> Mapping[str, Here]:
    """How far throughput grows linearly, of all sizes; and the clients per replica that suffice, of the fastest."""
    differs = "models of 32x32, two cores of one machine, which the clients share"
    linear: list[dict[str, Any]] = []
    for size in measured_sizes(rows):
        own = of(rows, size)
        alone = next((row["requests_per_s"] for row in own if row["clients"] == 1), None)
        if alone is not None:
            linear += [row for row in own if row["requests_per_s"] >= LINEAR * row["clients"] * alone]
    if not linear:
        return {}
    last = max(linear, key=lambda row: row["requests_per_s"])
    fastest = max((row for row in rows if "error" not in row), key=lambda row: row["requests_per_s"])
    own = of(rows, _size(fastest))
    enough = next(row for row in own if row["requests_per_s"] >= REACHED * fastest["requests_per_s"])
    rate, each = last["requests_per_s"], enough["clients"] / enough["replicas"]
    name, what = ("wire_there", "on the wire") if "wire_there" in last else ("megabits_per_s", "of images, no headers")
    return {
        "rate up to which throughput grows linearly": Here(rate, f"{rate:.0f} requests/s", differs),
        "traffic at that rate": Here(last[name], f"{last[name]:.1f} Mb/s {what}", differs),
        "clients per pod": Here(each, f"{each:g} clients per replica", differs),
    }


def picture(rows: Rows) -> Groups:
    """A group for each size; what the law says beyond what was measured has an interval and is called extrapolated."""
    groups: list[tuple[str, list[Bar]]] = []
    for size in measured_sizes(rows):
        own = of(rows, size)
        bars = [
            Bar(f"{row['clients']} clients", row["requests_per_s"], f"{row['requests_per_s']:.0f}", True) for row in own
        ]
        if (law := _law(own)) is not None:
            middle, low, high = law.at(BEYOND)
            bars.append(Bar(f"{BEYOND} clients, extrapolated", middle, f"{middle:.0f}", interval=(low, high)))
        groups.append((size.name, bars))
    return [group for group in groups if group[1]]


SCALING = Experiment(
    "scaling",
    "Requests per second by clients, replicas and cores; what is not coloured is extrapolated",
    "Images of 15 KB, models of 32x32 in int8, over HTTP, one process per replica",
    check_photographs,
    measure,
    table,
    compare,
    picture,
    seconds=3.0,
)
