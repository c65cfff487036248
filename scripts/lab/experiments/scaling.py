"""Throughput by clients, replicas of the whole graph and cores, with the Universal Scalability Law fitted to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from deployments.cpus import available_cpus, usable
from scripts.errors import ScriptError
from scripts.lab.benchmark.systems import OURS, running
from scripts.lab.benchmark.workloads import workload
from scripts.lab.experiments.experiment import Experiment, Groups, Here, Part, Rows, check_photographs
from scripts.lab.experiments.scalability import Law, held_out
from scripts.lab.pictures.chart import Bar
from scripts.results import Table

CLIENTS, BEYOND = (1, 2, 4, 8, 16, 32), 64
# Of N times the rate of one client, what still counts as linear; of the highest rate, what counts as reached.
LINEAR, REACHED = 0.9, 0.95
HEADINGS = ("cores", "replicas", "clients", "requests/s", "p50, ms", "Mb/s of images", "the law", "95 % interval")


@dataclass(frozen=True)
class Size:
    """What the server has: cores, and replicas of the whole graph that share them."""

    cores: int
    replicas: int

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
    """One replica on one core, as `cpus` of several are refused; and one, two and four on all."""
    return list(dict.fromkeys([Size(1, 1), *(Size(available_cpus(), replicas) for replicas in (1, 2, 4))]))


def measure(seconds: float) -> Sequence[Part]:
    """Serve each size, and load it by more and more clients."""
    return [Part(str(size), partial(_measured, size, seconds), asdict(size)) for size in sizes()]


def _measured(size: Size, seconds: float) -> Iterator[dict[str, float]]:
    load = workload("embedded", "int8")
    megabits = sum(path.stat().st_size for path in load.images) / len(load.images) * 8 / 1e6
    with running(OURS["colocated"], load, size.edit) as server:
        for clients in CLIENTS:
            found = server.load(load, "http", clients, seconds)
            rate = found["requests_per_s"]
            figures = {"requests_per_s": rate, "p50_ms": found["p50_ms"], "megabits_per_s": rate * megabits}
            yield {"clients": clients, **figures}


def of(rows: Rows, size: Size) -> Rows:
    """What was measured of a size, by clients."""
    return [
        row for row in rows if (row["cores"], row["replicas"]) == (size.cores, size.replicas) and "error" not in row
    ]


def measured_sizes(rows: Rows) -> list[Size]:
    """Those in the rows."""
    return list(dict.fromkeys(Size(row["cores"], row["replicas"]) for row in rows))


def table(rows: Rows) -> Table:
    """What was measured, what the law says of it, and of twice as many clients, which is called extrapolated."""
    lines = []
    notes = [f"{row['cores']} cores, {row['replicas']} replicas: {row['error']}" for row in rows if "error" in row]
    for size in measured_sizes(rows):
        own = of(rows, size)
        counts, rates = [row["clients"] for row in own], [row["requests_per_s"] for row in own]
        words = [str(size.cores), str(size.replicas)]
        law = _law(own)
        for row in own:
            numbers = [f"{row['requests_per_s']:.0f}", f"{row['p50_ms']:.1f}", f"{row['megabits_per_s']:.1f}"]
            lines.append([*words, str(row["clients"]), *numbers, *_said(law, row["clients"])])
        if law is not None:
            lines.append([*words, f"{BEYOND}, extrapolated", "", "", "", *_said(law, BEYOND)])
            notes.append(
                f"{size.cores} cores, {size.replicas} replicas: contention {law.contention:.3f}, coherence "
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
    own = of(rows, Size(fastest["cores"], fastest["replicas"]))
    enough = next(row for row in own if row["requests_per_s"] >= REACHED * fastest["requests_per_s"])
    rate, wire, each = last["requests_per_s"], last["megabits_per_s"], enough["clients"] / enough["replicas"]
    return {
        "rate up to which throughput grows linearly": Here(rate, f"{rate:.0f} requests/s", differs),
        "traffic at that rate": Here(wire, f"{wire:.1f} Mb/s of images", f"{differs}; headers are not counted"),
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
        groups.append((f"{size.cores} cores, {size.replicas} replicas", bars))
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
