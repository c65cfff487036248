"""The time of each node and of each hop between nodes, from traces: in one process, by each edge, and elsewhere."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import uvloop
from tqdm import tqdm

from deployments.observe.exporters import FOLDER
from ensemble_capacity.plan.placements import placed
from ensemble_capacity.plan.server import serving
from lab.benchmark.workloads import photographs, workload
from lab.experiments.experiment import Experiment, Groups, Here, Part, Rows, check_photographs
from lab.experiments.path import ARROW, ELSEWHERE
from lab.experiments.traced import Asked, divided, send
from lab.pictures.chart import Bar
from scripts.results import Table
from scripts.trace.spans import read_traces

RATES = (10, 20, 40)
EDGES = ("direct", "handle")
# Each kind of a member on another server, and its model there.
REMOTE = {"tensorflow_serving": "ensemble", "open_inference": "resnet"}
WAYS = ("inline", *EDGES, *REMOTE)
PARTS = ("client", "ingress", "queue", "decode", "member", "combine", "label", "hops", "proxy")
Times = dict[str, float]


def part(name: str) -> str:
    """Which of `PARTS` a node or a hop is."""
    if "client" in name:
        return "client"
    if ELSEWHERE in name:
        return "proxy" if ARROW in name or name.endswith(("queue", "classify")) else "member"
    # A member that begins when the other has ended waited for it, and not for a hop.
    node, _, later = name.partition(ARROW)
    return node if later in {"", node} else "ingress" if "classify" in name else "hops"


def parts(row: Mapping[str, Any]) -> Times:
    """The time of each of `PARTS` in a row, milliseconds."""
    return {each: sum(ms for name, ms in row["steps_ms"].items() if part(name) == each) for each in PARTS}


def hops(row: Mapping[str, Any]) -> Times:
    """The time of each hop between two nodes in a row, milliseconds, in the order of a request."""
    return dict(reversed([(name, ms) for name, ms in row["steps_ms"].items() if part(name) == "hops"]))


def configured(way: str, elsewhere: str | None = None) -> dict[str, Any]:
    """The Serve config of a way.

    Args:
        way: of `WAYS`.
        elsewhere: the URL of the server that has the remote member.
    """
    config = placed(workload("embedded", "int8").config("separate", 0, 0), "separate" if way in EDGES else "inline")
    args = config["applications"][0]["args"]
    if way in EDGES:
        args["edges"] = way
    if way in REMOTE:
        resnet, densenet = args["members"]
        remote = {"kind": way, "url": elsewhere, "model": REMOTE[way], "placement": "inline"}
        args["members"] = [{"name": resnet["name"], **remote}, densenet]
    return config


def measure(seconds: float) -> Sequence[Part]:
    """All in one, because the spans are written when the servers have ended."""
    return [Part("all", partial(measured, seconds))]


def measured(seconds: float) -> Rows:
    """The rows: each way at each rate."""
    images = [file.read_bytes() for file in photographs("small")]
    clients: dict[tuple[str, float], list[Asked]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with ExitStack() as stack:
            alone = configured("inline")
            # Its ensemble is the one model that the other protocol asks it for by itself.
            del alone["applications"][0]["args"]["members"][1:]
            http = stack.enter_context(serving(alone, traced_in=folder))
            head, _, port = http.rpartition(":")
            elsewhere = f"{head.replace('http', 'grpc')}:{int(port) + 1}"
            for way in tqdm(WAYS, unit="server"):
                with serving(configured(way, elsewhere), traced_in=folder) as url:
                    for rate in RATES:
                        clients[way, rate] = uvloop.run(send(url, images, rate, seconds))
        # Each server has written its last spans when it has ended.
        traces = {trace.trace_id: trace.spans for trace in read_traces(folder / FOLDER)}
    return [{"way": way, "rate": rate, **divided(each, traces)} for (way, rate), each in clients.items()]


def table(rows: Rows) -> Table:
    """A line for each way and rate; the hops between nodes one by one."""
    lines = []
    for row in rows:
        times = parts(row)
        each = " + ".join(f"{ms:.2f}" for ms in hops(row).values())
        texts = [f"{times[name]:.2f}" if name != "hops" else each for name in PARTS]
        share = 100 * sum(times.values()) / row["latency_ms"]
        lines.append(
            [row["way"], f"{row['rate']:g}", str(row["requests"]), *texts, f"{row['latency_ms']:.2f}", f"{share:.1f}"]
        )
    heads = ("nodes", "requests/s", "requests", *(f"{name}, ms" for name in PARTS), "latency, ms", "sum, % of it")
    return Table(heads, lines)


def compare(rows: Rows) -> Mapping[str, Here]:
    """The extremes of a hop between two nodes, of what the client adds, and of what a proxy adds."""
    differs = "one machine of two cores, with the client; images of 15 KB, models of 32x32 in int8"
    found = {
        "of a hop between two nodes": [ms for row in rows if row["way"] in EDGES for ms in hops(row).values()],
        "that the client adds": [parts(row)["client"] for row in rows],
        "that a proxy to a model server adds": [
            parts(row)["proxy"] * row["requests"] / row["elsewhere"] for row in rows if row["elsewhere"]
        ],
    }
    return {
        f"{name} {what}": Here(extreme(values), f"{extreme(values):.2f} ms", differs)
        for what, values in found.items()
        for name, extreme in (("least", min), ("most", max))
    }


def picture(rows: Rows) -> Groups:
    """The parts of each way at the middle rate, what lies between nodes marked."""
    groups = []
    for row in (row for row in rows if row["rate"] == RATES[len(RATES) // 2]):
        times = {name: ms for name, ms in parts(row).items() if ms}
        bars = [Bar(name, ms, f"{ms:.2f} ms", ours=name in {"hops", "proxy"}) for name, ms in times.items()]
        groups.append((f"{row['way']}, {row['latency_ms']:.1f} ms", bars))
    return groups


HOPS = Experiment(
    "hops",
    f"Milliseconds of a request in each node and between nodes, at {RATES[len(RATES) // 2]} requests/s",
    "Images of 15 KB, models of 32x32 in int8, over HTTP, one image per request",
    check_photographs,
    measure,
    table,
    compare,
    picture,
    seconds=3.0,
)
