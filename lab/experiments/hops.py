"""The time of each node and of each hop between nodes, from traces: in one process, by each edge, and elsewhere."""

from __future__ import annotations

import asyncio
import secrets
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import cycle, takewhile
from pathlib import Path
from statistics import fmean
from typing import Any

import uvloop
from tqdm import tqdm

from deployments.contract.member import OPERATION
from deployments.observe.tracing import BATCH
from ensemble_capacity.load.load import Arrivals
from ensemble_capacity.load.records import DEGRADED
from ensemble_capacity.serving import WARM_UP_S, serving
from ensemble_capacity.trace.file import FOLDER
from ensemble_capacity.trace.spans import RecordedSpan, read_traces
from ensemble_serving.transports import NoResponse, Server, Transport, connect
from lab.benchmark.peer import grpc_form
from lab.benchmark.placements import placed
from lab.benchmark.workloads import photographs, workload
from lab.experiments.experiment import declared
from lab.pictures import Bar, Groups
from lab.rows import Part, Row, Rows, enough
from scripts.errors import ScriptError

ARROW, ELSEWHERE = " to ", "its server's "
# By how much of the latency its parts may miss it.
TOLERANCE = 0.03
# As the document's client asks: gRPC, the JPEG as bytes.
FORM = grpc_form()
Asked = tuple[RecordedSpan, float]
# Spans by their parents' ids.
Below = Mapping[str | None, Sequence[RecordedSpan]]


def path(
    span: RecordedSpan, below: Below, where: str = "", begin: int = 0, end: int | None = None
) -> Iterator[tuple[str, int]]:
    """Divide a span's time, the last part first: microseconds of each node and, with both names, of each hop.

    `below` has the spans by their parents' ids, `where` is what names begin with; from `begin` to `end` it counts.
    """
    begin, end = max(begin, span.start_us), span.end_us if end is None else min(end, span.end_us)
    own = where + _node(span)
    inner = where if own in {"client", where + "classify"} else ELSEWHERE
    now, later = end, own
    for child in sorted(below.get(span.span_id, ()), key=lambda child: (child.end_us, child.start_us), reverse=True):
        # A server ends its span when it has sent the answer, which its client may have by then.
        last, first = min(child.end_us, end), max(child.start_us, begin)
        if child.name == BATCH or first > last or last > now:
            continue
        parts = list(path(child, below, inner, first, last))
        name = inner + _node(child)
        yield name + ARROW + later, now - last
        yield from parts
        now, later = first, name
    yield (own if later == own else own + ARROW + later), now - begin


def _node(span: RecordedSpan) -> str:
    """Name a span's node; every member is called `member`."""
    return "member" if span.name.startswith(OPERATION) else span.name


async def ask(transport: Transport, image: bytes) -> Asked:
    """Classify an image; return the client's span, and the latency by its own clock, milliseconds."""
    trace, own = secrets.token_hex(16), secrets.token_hex(8)
    request = FORM.request([image])
    request = replace(request, headers=(*request.headers, ("traceparent", f"00-{trace}-{own}-01")))
    begin, began = time.time_ns(), time.perf_counter()
    try:
        response = await transport.send(request)
    except NoResponse as err:
        raise ScriptError(f"a request failed: {err}") from err
    end, latency_ms = time.time_ns(), 1000 * (time.perf_counter() - began)
    if not response.ok or FORM.seen(response.body, "") & DEGRADED:
        raise ScriptError(f"an answer has the status {response.status}, or lacks a member: {response.body[:500]!r}")
    return RecordedSpan(trace, own, None, "client", "client", begin // 1000, end // 1000, {}, [], {}, False), latency_ms


async def send(url: str, images: Sequence[bytes], rate: float, seconds: float) -> list[Asked]:
    """Ask at Poisson's times for a number of seconds after the warm-up, whose requests do not count."""
    transport, begin, tasks = connect(Server(url)), time.perf_counter(), []
    due = takewhile(lambda offset: offset < WARM_UP_S + seconds, Arrivals(rate).offsets())
    try:
        for offset, image in zip(due, cycle(images), strict=False):
            await asyncio.sleep(begin + offset - time.perf_counter())
            tasks.append((offset, asyncio.create_task(ask(transport, image))))
        answers = await asyncio.gather(*(task for _, task in tasks))
    finally:
        await transport.close()
    return [answer for (offset, _), answer in zip(tasks, answers, strict=True) if offset >= WARM_UP_S]


def divided(clients: Sequence[Asked], traces: Mapping[str, Sequence[RecordedSpan]]) -> dict[str, Any]:
    """Take the means of the latency, its parts and each member's span, milliseconds, and count calls elsewhere.

    Raises ScriptError if a trace is missing, or the parts differ from the latency by more than the tolerance.
    """
    steps: dict[str, float] = defaultdict(float)
    members: dict[str, list[float]] = defaultdict(list)
    elsewhere = 0
    for client, _ in clients:
        below = defaultdict(list)
        for span in traces.get(client.trace_id, ()):
            below[span.parent_id].append(span)
            if span.name.startswith(OPERATION):
                members[span.name.removeprefix(OPERATION).strip()].append(span.duration_us / 1000)
        if not below[client.span_id]:
            raise ScriptError(f"the trace {client.trace_id} was not written; send fewer requests per second")
        times = list(path(client, below))
        elsewhere += any(ELSEWHERE in name for name, _ in times)
        for name, duration_us in times:
            steps[name] += duration_us / 1000 / len(clients)
    latency = fmean(each for _, each in clients)
    if not abs(sum(steps.values()) - latency) <= TOLERANCE * latency:
        raise ScriptError(
            f"the parts sum to {sum(steps.values()):.2f} ms, and the client's latency is {latency:.2f} ms"
        )
    return {
        "requests": len(clients),
        "elsewhere": elsewhere,
        "latency_ms": latency,
        "steps_ms": dict(steps),
        "members_ms": {name: fmean(times) for name, times in members.items()},
    }


RATES, ROUNDS = (10, 20), 3
MIDDLE = RATES[1]
EDGES = ("direct", "handle")
# Each kind of a member on another server, and its model there.
REMOTE = {"tensorflow_serving": "ensemble", "open_inference": "resnet"}
WAYS = ("inline", *EDGES, *REMOTE)
PARTS = ("client", "ingress", "queue", "decode", "member", "combine", "label", "hops", "proxy")
# Of the table, which has each hop besides.
TABLED = (("client",), ("ingress",), ("queue",), ("decode", "combine", "label"), ("member",))


def part(name: str) -> str:
    """Tell which of `PARTS` a node or a hop is."""
    if "client" in name:
        return "client"
    if ELSEWHERE in name:
        return "proxy" if ARROW in name or name.endswith(("queue", "classify")) else "member"
    # A member that begins when the other has ended waited for it, and not for a hop.
    node, _, later = name.partition(ARROW)
    return node if later in {"", node} else "ingress" if "classify" in name else "hops"


def hops(row: Row) -> dict[str, float]:
    """Give the time of each hop between two nodes in a row, milliseconds, in the order of a request."""
    return dict(reversed([(name, ms) for name, ms in row["steps_ms"].items() if part(name) == "hops"]))


def with_parts(rows: Rows) -> Rows:
    """Add the milliseconds of each of `PARTS`."""
    return [
        {**row, **{each: sum(ms for name, ms in row["steps_ms"].items() if part(name) == each) for each in PARTS}}
        for row in rows
    ]


def tabled(rows: Rows) -> Rows:
    """Put the ways side by side: the whole request at each rate, and each edge's parts at the middle rate."""
    found: dict[str, Row] = {}
    for row in rows:
        times = {f"whole request at {row['rate']}/s": row["latency_ms"]}
        if row["rate"] == MIDDLE and row["way"] not in REMOTE:
            each = {" and ".join(names): sum(row[name] for name in names) for names in TABLED}
            times = {**each, **{f"hop: {name}": ms for name, ms in hops(row).items()}, **times}
        for name, ms in times.items():
            found.setdefault(name, {"part": name})[row["way"]] = ms
    return sorted(found.values(), key=lambda line: line["part"].startswith("whole"))


def configured(way: str, elsewhere: str | None = None) -> dict[str, Any]:
    """Make the Serve config of one of `WAYS`; `elsewhere` is the URL of the server that has the remote member."""
    config = placed(workload("imagenet", "int8").config("separate", 0, 0), "separate" if way in EDGES else "inline")
    args = config["applications"][0]["args"]
    if way in EDGES:
        args["edges"] = way
    if way in REMOTE:
        resnet, densenet = args["members"]
        remote = {"kind": way, "url": elsewhere, "model": REMOTE[way], "placement": "inline"}
        args["members"] = [{"name": resnet["name"], **remote}, densenet]
    return config


def grpc_of(url: str) -> str:
    """Return where a server answers gRPC, by its HTTP address: its next port."""
    head, _, port = url.rpartition(":")
    return f"{head.replace('http', 'grpc')}:{int(port) + 1}"


def parts(seconds: float) -> Sequence[Part]:
    """Make all ways one part, because the spans are written when the servers have ended."""
    return [Part("all", partial(every_way, seconds))]


def every_way(seconds: float) -> Rows:
    """Serve each way, and send each rate in each of the rounds."""
    images = [file.read_bytes() for file in photographs("small")]
    clients: dict[tuple[str, float], list[Asked]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with ExitStack() as stack:
            alone = configured("inline")
            # Its ensemble is the one model that the other protocol asks it for by itself.
            del alone["applications"][0]["args"]["members"][1:]
            elsewhere = grpc_of(stack.enter_context(serving(alone, traced_in=folder)))
            for way in tqdm(WAYS, unit="server"):
                with serving(configured(way, elsewhere), traced_in=folder) as url:
                    for rate in RATES * ROUNDS:
                        clients[way, rate] += uvloop.run(send(grpc_of(url), images, rate, seconds))
        # Each server has written its last spans when it has ended.
        traces = {trace.trace_id: trace.spans for trace in read_traces(folder / FOLDER)}
    return [{"way": way, "rate": rate, **divided(each, traces)} for (way, rate), each in clients.items()]


def compare(rows: Rows) -> Mapping[str, str]:
    """Compare the extremes of a hop by each edge, what the client adds, and whole requests with and without a proxy."""
    own = enough(rows)
    middle = {row["way"]: row for row in own if row["rate"] == MIDDLE}
    of_hops = {way: [ms for row in own if row["way"] == way for ms in hops(row).values()] for way in EDGES}
    clients = [row["client"] for row in own]
    found = {}
    for name, extreme in (("smallest", min), ("largest", max)):
        if all(of_hops.values()):
            each = ", ".join(f"{extreme(values):.2f} ms by a {way} edge" for way, values in of_hops.items())
            found[f"{name} hop between two nodes"] = each
        if clients:
            found[f"{name} latency added by the client"] = f"{extreme(clients):.2f} ms"
    if "inline" in middle and (remote := middle.keys() & REMOTE.keys()):
        more = {way: middle[way]["latency_ms"] - middle["inline"]["latency_ms"] for way in REMOTE if way in remote}
        for name, extreme in (("smallest", min), ("largest", max)):
            way = extreme(more, key=more.__getitem__)
            told = f"{more[way]:+.1f} ms of a whole request ({way})"
            found[f"{name} latency added by a proxy to a model server"] = told
    if overhead := [way for way in ("inline", *EDGES) if way in middle]:
        calls = {way: sum(ms for name, ms in hops(middle[way]).items() if "member" in name) for way in overhead}
        in_all = {way: sum(hops(middle[way]).values()) + middle[way]["client"] for way in overhead}
        for subject, times in (
            ("call of a model, without its inference", calls),
            ("network and serialization in all", in_all),
        ):
            found[subject] = ", ".join(f"{ms:.2f} ms {way}" for way, ms in times.items())
    return found


def picture(rows: Rows) -> Groups:
    """Draw the parts of each way at the middle rate, with what lies between nodes marked."""
    groups = []
    for row in (row for row in rows if row["rate"] == MIDDLE):
        bars = [
            Bar(name, row[name], f"{row[name]:.2f} ms", ours=name in {"hops", "proxy"}) for name in PARTS if row[name]
        ]
        groups.append((f"{row['way']}, {row['latency_ms']:.1f} ms", bars))
    return groups


HOPS = declared("hops", parts=parts, picture=picture, shown=with_parts, tabled=tabled, computed=compare)
