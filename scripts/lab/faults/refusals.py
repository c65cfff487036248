"""Asks a server for more than it can do, and tells what became of the requests.

    ensemble faults refusals                 # every kind, four minutes
    ensemble faults refusals obeying --markdown refusals.md

Each kind starts a server of its own, all nodes in one process with models of ImageNet's size, and loads it before and
after as far as it goes with 32 clients: the mean of both is the best, of which the overloaded server's rate is told as
a share. What is answered after a load's time is no part of its rate.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from tqdm import tqdm

from scripts.errors import positive, told_in_one_line
from scripts.lab.benchmark.systems import HTTP_PORT, OURS, running
from scripts.lab.benchmark.workloads import workload
from scripts.lab.client import Connection
from scripts.results import Table, add_files, check_files, write_files
from scripts.serve.environment import set_up

HEADINGS = ("load", "answers/s", "of the best", "refused", "otherwise failed", "p99, ms", "at first retry", "memory")
BEST_CLIENTS, BEST_S = 32, 8.0
TIMES, MOST_OPEN = 3.0, 4000
OK, REFUSED = 200, 503


@dataclass
class Seen:
    """What the clients of a load saw.

    Attributes:
        until: the end of the load, as `time.monotonic`.
        statuses: how many answers had each HTTP status; 0 for a connection that broke.
        latencies: of the answers with 200, seconds.
        in_time: how many of those came until the end.
        retries: how many requests were tried again after a refusal, for the first time.
        admitted: how many of those were let in then.
    """

    until: float
    statuses: Counter[int] = field(default_factory=Counter)
    latencies: list[float] = field(default_factory=list)
    in_time: int = 0
    retries: int = 0
    admitted: int = 0


class Client:
    """One keep-alive connection."""

    def __init__(self, images: Sequence[bytes], number: int, seen: Seen) -> None:
        """Set what is sent, from where on, and where answers are counted."""
        self._images = itertools.islice(itertools.cycle(images), number % len(images), None)
        self._seen = seen
        self._connection = Connection("127.0.0.1", HTTP_PORT)
        self.close = self._connection.close

    async def ask(self) -> tuple[int, float]:
        """The status of an answer, 0 for none; and when to try again, seconds."""
        image = next(self._images)
        started = time.perf_counter()
        status, body = await self._connection.post(image)
        self._seen.statuses[status] += 1
        if status == OK:
            self._seen.latencies.append(time.perf_counter() - started)
            self._seen.in_time += time.monotonic() <= self._seen.until
        wait_ms = json.loads(body)["error"].get("retry_after_ms", 1000) if status == REFUSED else 0
        return status, wait_ms / 1000


async def closed(images: Sequence[bytes], clients: int, seconds: float, obey: bool) -> Seen:
    """Clients that ask again as soon as they are answered; or, if they obey, when a refusal says so."""
    seen = Seen(time.monotonic() + seconds)

    async def ask(number: int) -> None:
        client = Client(images, number, seen)
        retries = 0
        while time.monotonic() < seen.until:
            status, wait_s = await client.ask()
            if retries == 1:
                seen.retries += 1
                seen.admitted += status == OK
            retries = retries + 1 if status == REFUSED else 0
            if obey and status == REFUSED:
                await asyncio.sleep(min(wait_s, max(0.0, seen.until - time.monotonic())))
        client.close()

    await asyncio.gather(*map(ask, range(clients)))
    return seen


async def opened(images: Sequence[bytes], rate: float, seconds: float) -> Seen:
    """Requests that come whatever becomes of the others, a Poisson process of so many a second."""
    seen = Seen(time.monotonic() + seconds)
    idle: list[Client] = []
    asked: set[asyncio.Task[None]] = set()

    async def ask(number: int) -> None:
        client = idle.pop() if idle else Client(images, number, seen)
        await client.ask()
        idle.append(client)

    due = time.monotonic()
    for number in range(int(rate * seconds)):
        due += random.expovariate(rate)
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        if time.monotonic() > seen.until:
            break
        if len(asked) < MOST_OPEN:
            asked.add(task := asyncio.create_task(ask(number)))
            task.add_done_callback(asked.discard)
    await asyncio.gather(*asked)
    for client in idle:
        client.close()
    return seen


@dataclass(frozen=True)
class Load:
    """A kind of overload.

    Attributes:
        name: on the command line.
        what: as a sentence for the table.
        run: does it for so many seconds; the best rate is known, requests a second.
        ingress: settings of the ingress that differ from the default.
    """

    name: str
    what: str
    run: Callable[[Sequence[bytes], float, float], Any]
    ingress: dict[str, Any] = field(default_factory=dict)


LOADS = (
    Load(
        "ignoring",
        "500 clients that ask again at once when they are refused",
        lambda images, _, seconds: closed(images, 500, seconds, obey=False),
    ),
    Load(
        "threefold",
        f"requests at {TIMES:.0f} times the best rate, whatever becomes of them",
        lambda images, best, seconds: opened(images, TIMES * best, seconds),
    ),
    Load(
        "obeying",
        "200 clients that wait as they are told; 64 places",
        lambda images, _, seconds: closed(images, 200, seconds, obey=True),
        {"max_in_flight": 64},
    ),
)


@dataclass(frozen=True)
class Result:
    """What a load came to.

    Attributes:
        what: the load.
        rate: answers with 200, a second.
        share: of the best rate.
        refused: requests answered 503.
        failed: requests with any other answer, or none.
        others: those by status; 0 for none.
        p99_ms: the 99th percentile of the latency of those answered with 200, milliseconds.
        at_first_retry: the share of refused requests that were let in when they came again; NaN if none did.
        growth_mb: the server's memory after the load, above that before, megabytes.
    """

    what: str
    rate: float
    share: float
    refused: int
    failed: int
    others: dict[int, int]
    p99_ms: float
    at_first_retry: float
    growth_mb: float

    def cells(self) -> list[str]:
        """A line of the table."""
        retried = "" if np.isnan(self.at_first_retry) else f"{self.at_first_retry:.1%}"
        numbers = [f"{self.rate:,.0f}", f"{self.share:.2f}", f"{self.refused:,}", f"{self.failed:,}"]
        return [self.what, *numbers, f"{self.p99_ms:,.0f}", retried, f"{self.growth_mb:+,.0f} MB"]


def best_rate(images: Sequence[bytes]) -> float:
    """How many answers a second a server gives that is loaded as far as it goes."""
    return asyncio.run(closed(images, BEST_CLIENTS, BEST_S, obey=True)).in_time / BEST_S


def measure(load: Load, seconds: float) -> Result:
    """What becomes of a load; raises ScriptError if the server does not start."""
    served = workload("imagenet", "int8")
    images = [path.read_bytes() for path in served.images]

    def edit(config: dict[str, Any]) -> None:
        config["applications"][0]["args"].setdefault("ingress", {}).update(load.ingress)

    with running(OURS["colocated"], served, edit) as server:
        best = best_rate(images)
        before = server.resident_mb()
        seen: Seen = asyncio.run(load.run(images, best, seconds))
        growth = server.resident_mb() - before
        best = (best + best_rate(images)) / 2
    rate = seen.in_time / seconds
    others = {status: count for status, count in seen.statuses.items() if status not in {OK, REFUSED}}
    return Result(
        what=load.what,
        rate=rate,
        share=rate / best,
        refused=seen.statuses[REFUSED],
        failed=sum(others.values()),
        others=others,
        p99_ms=float(np.percentile(seen.latencies or [float("nan")], 99)) * 1000,
        at_first_retry=seen.admitted / seen.retries if seen.retries else float("nan"),
        growth_mb=growth,
    )


def report(results: Sequence[Result], args: argparse.Namespace) -> None:
    """Print the results, and write the files that were asked for."""
    table = Table(HEADINGS, [result.cells() for result in results])
    table.show()
    for result in results:
        if result.others:
            told = ", ".join(f"{count:,} with {status or 'none'}" for status, count in sorted(result.others.items()))
            print(f"otherwise failed of {result.what}: {told}")
    write_files(args, table, [asdict(result) for result in results])


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line and measure."""
    names = [load.name for load in LOADS]
    parser = argparse.ArgumentParser(
        "ensemble faults refusals",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("loads", nargs="*", metavar="LOAD", help=f"of {', '.join(names)}; default: all")
    parser.add_argument("--seconds", type=positive, default=30, help="how long each load lasts")
    add_files(parser, "json", "markdown")
    args = parser.parse_args(arguments)
    if unknown := [name for name in args.loads if name not in names]:
        parser.error(f"there is no load {unknown[0]!r}; there are {', '.join(names)}")
    check_files(parser, args)
    with told_in_one_line():
        set_up()
        chosen = [load for load in LOADS if load.name in (args.loads or names)]
        report([measure(load, args.seconds) for load in tqdm(chosen, unit="load")], args)
