"""Sends a server requests, and as many again, and reports its memory after each.

    ensemble faults memory                   # twice 100,000 requests to one process: ten to twenty minutes
    ensemble faults memory --placement separate --requests 20000

Of the bundled models, by HTTP and gRPC in turn. A quarter as many requests go before, in which pools and caches of
allocators fill. Memory is the resident one of all processes together, in which a page that several share counts once.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tqdm import tqdm

from ensemble_models.results import Table, add_files, check_files, write_files
from lab.benchmark.systems import OURS, Running, running
from lab.benchmark.workloads import Placement, Workload, workload
from scripts.errors import errors_in_one_line, positive
from scripts.flags import described
from scripts.serve.environment import set_up

HEADINGS = ("placement", "after", "requests", "memory, MB", "growth")
CLIENTS, TURN_S = 16, 15.0


@dataclass(frozen=True)
class Stop:
    """What was measured after some requests.

    Attributes:
        placement: of every node.
        after: which part has ended.
        requests: answered so far.
        memory_mb: the server's.
        growth: since the stop before, a share of what it was then.
    """

    placement: Placement
    after: str
    requests: int
    memory_mb: float
    growth: float | None = None

    def cells(self) -> list[str]:
        """Format the stop as a line of the table."""
        growth = "" if self.growth is None else f"{self.growth:+.2%}"
        return [self.placement, self.after, f"{self.requests:,}", f"{self.memory_mb:,.0f}", growth]


def measure(placement: Placement, requests: int) -> list[Stop]:
    """Measure the memory after the warming up, after `requests` requests, and after as many again.

    Raises:
        ScriptError: the server did not start, or a request failed.
    """
    load = workload("embedded", "int8")
    stops: list[Stop] = []
    parts = {"the warming up": requests // 4, "the first": requests, "as many again": requests}
    with (
        running(OURS[placement], load) as server,
        tqdm(total=sum(parts.values()), unit="request", unit_scale=True) as progress,
    ):
        sent, before = 0, None
        for after, count in parts.items():
            sent += _send(server, load, count, progress)
            memory = server.resident_mb()
            stops.append(Stop(placement, after, sent, memory, None if before is None else memory / before - 1))
            before = memory
    return stops


def _send(server: Running, load: Workload, count: int, progress: Any) -> int:
    """Send `count` requests, or a few more; return their number."""
    sent, protocols = 0, itertools.cycle(("http", "grpc"))
    while sent < count:
        answered = round(float(server.load(load, next(protocols), CLIENTS, TURN_S)["requests_per_s"]) * TURN_S)
        sent += answered
        progress.update(answered)
    return sent


def main(arguments: Sequence[str]) -> None:
    """Parse the command line, send, and tell."""
    parser = described(__doc__, "ensemble faults memory")
    parser.add_argument("--requests", type=positive, default=100_000, help="and as many again; default: %(default)s")
    parser.add_argument("--placement", choices=tuple(OURS), default="colocated")
    add_files(parser, "json", "markdown")
    args = parser.parse_args(arguments)
    check_files(parser, args)
    with errors_in_one_line():
        set_up()
        stops = measure(args.placement, args.requests)
    table = Table(HEADINGS, [stop.cells() for stop in stops], words=range(2))
    table.show()
    write_files(args, table, [asdict(stop) for stop in stops])
