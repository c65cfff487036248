"""Sends a server requests, and as many again, and reports its memory after each.

    ensemble faults memory                   # twice 100,000 requests to one process: ten to twenty minutes
    ensemble faults memory --placement separate --requests 20000

Of the bundled models, by HTTP and gRPC in turn. A quarter as many requests go before, in which pools and caches of
allocators fill. Memory is the resident one of all processes together, in which a page that several share counts once.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator
from functools import partial

from tqdm import tqdm

from lab.benchmark.systems import OURS, Running, running
from lab.benchmark.workloads import Placement, Workload, workload
from lab.faults.campaign import Campaign
from lab.rows import Part, Row
from scripts.errors import positive

CLIENTS, TURN_S = 16, 15.0


def measure(placement: Placement, requests: int) -> Iterator[Row]:
    """Measure the memory after the warming up, after `requests` requests, and after as many again.

    Raises:
        ScriptError: the server did not start, or a request failed.
    """
    load = workload("embedded", "int8")
    counts = {"the warming up": requests // 4, "the first": requests, "as many again": requests}
    with running(OURS[placement], load) as server:
        sent, before = 0, None
        for after, count in counts.items():
            sent += _send(server, load, count)
            memory = server.resident_mb()
            growth = None if before is None else memory / before - 1
            yield {"after": after, "requests": sent, "memory_mb": memory, "growth": growth}
            before = memory


def _send(server: Running, load: Workload, count: int) -> int:
    """Send `count` requests, or a few more; return their number."""
    protocols = itertools.cycle(("http", "grpc"))
    with tqdm(total=count, unit="request", unit_scale=True) as progress:
        while progress.n < count:
            rate = float(server.load(load, next(protocols), CLIENTS, TURN_S)["requests_per_s"])
            progress.update(round(rate * TURN_S))
        return int(progress.n)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of what is sent to which server."""
    parser.add_argument("--requests", type=positive, default=100_000, help="and as many again; default: %(default)s")
    parser.add_argument("--placement", choices=tuple(OURS), default="colocated")


MEMORY = Campaign(
    name="memory",
    help=__doc__,
    add_flags=add_flags,
    parts=lambda args: [
        Part("all", partial(measure, args.placement, args.requests), {"placement": args.placement}),
    ],
    columns="placement {placement} | after {after} | requests {requests:,} | memory, MB {memory_mb:,.0f} | "
    "growth {growth:+.2%}",
)
