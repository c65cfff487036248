"""Sends labelled images at random times at a given rate, whatever comes back, and tells what did.

    ensemble overload http://127.0.0.1:8000 --data images.zip --rate 400 --seconds 60 --json load.json

The load is open: images come by a Poisson process and don't wait for the answers to others. After it, `--after`
seconds of one request at a time show when the whole ensemble answers again. Latency counts from when an image was to
be sent.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from scripts.dataset import Dataset
from scripts.errors import ScriptError, check_writable, told_in_one_line
from scripts.evaluate.__main__ import default_data
from scripts.lab.client import Connection

# Connections at most; an image that finds none free waits, and its latency with it.
CONNECTIONS = 600
PATIENCE_S = 60.0


@dataclass(frozen=True)
class Seen:
    """What came back for an image.

    Attributes:
        at_s: when it was to be sent, seconds from the begin.
        latency_s: until its answer.
        status: of the answer; 0 for none.
        right: whether its label is right.
        asked: how many members were asked; 0 where there is no cascade.
        eased: whether they were fewer because of the load.
    """

    at_s: float
    latency_s: float
    status: int
    right: bool = False
    asked: int = 0
    eased: bool = False


class Client:
    """Sends images over connections that are kept."""

    def __init__(self, url: str) -> None:
        """Set the server's root."""
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "127.0.0.1", parts.port or 80
        self._idle: list[Connection] = []
        self._free = asyncio.Semaphore(CONNECTIONS)

    async def send(self, image: bytes) -> tuple[int, dict[str, Any]]:
        """The status of the answer, and what it says; 0 if there was none."""
        async with self._free:
            connection = self._idle.pop() if self._idle else Connection(self._host, self._port, PATIENCE_S)
            status, body = await connection.post(image)
            self._idle.append(connection)
        try:
            return status, json.loads(body)
        except ValueError:
            return 0, {}

    def close(self) -> None:
        """Close every connection."""
        for connection in self._idle:
            connection.close()


async def drive(url: str, images: Sequence[tuple[bytes, str]], rate: float, seconds: float, after: float) -> list[Seen]:
    """Send images, of which each is bytes and a label, and wait for every answer.

    Raises:
        ScriptError: the server does not answer.
    """
    client, draw, seen, tasks = Client(url), random.Random(0), list[Seen](), set[asyncio.Task[None]]()
    if (status := (await client.send(images[0][0]))[0]) != 200:
        raise ScriptError(f"{url} answers {status or 'nothing'}; is it serving?")
    begin = time.perf_counter()

    async def one(due: float, image: bytes, label: str) -> None:
        status, said = await client.send(image)
        took = time.perf_counter() - begin - due
        right, asked = said.get("label") == label, len(said.get("asked") or ())
        seen.append(Seen(due, took, status, right, asked, bool(said.get("eased"))))

    due = 0.0
    while (due := due + draw.expovariate(rate)) < seconds:
        await asyncio.sleep(max(0.0, begin + due - time.perf_counter()))
        task = asyncio.create_task(one(due, *images[draw.randrange(len(images))]))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    # The load is over: what is still on its way comes back beside these.
    end = time.perf_counter() - begin + after
    while (due := time.perf_counter() - begin) < end:
        await one(due, *images[draw.randrange(len(images))])
    await asyncio.gather(*tasks)
    client.close()
    return sorted(seen, key=lambda each: each.at_s)


def told(seen: Sequence[Seen], seconds: float) -> dict[str, Any]:
    """What came back under load, of every second, and after how long the load was forgotten."""
    load = [each for each in seen if each.at_s < seconds]
    rest = [each for each in seen if each.at_s >= seconds]
    shortened = [each.at_s + each.latency_s - seconds for each in rest if each.eased]
    return {
        **_summary(load),
        "eased_until_s": round(max(shortened, default=0.0), 3),
        "after": _summary(rest),
        "by_second": [_summary([each for each in load if int(each.at_s) == second]) for second in range(int(seconds))],
    }


def _summary(seen: Sequence[Seen]) -> dict[str, Any]:
    well = [each for each in seen if each.status == 200]
    latency_ms = [1000 * each.latency_s for each in well]
    return {
        "sent": len(seen),
        "answered": len(well),
        "refused": sum(each.status == 503 for each in seen),
        "failed": sum(each.status not in {200, 503} for each in seen),
        "p50_ms": round(float(np.percentile(latency_ms, 50)), 1) if well else None,
        "p99_ms": round(float(np.percentile(latency_ms, 99)), 1) if well else None,
        "top1": round(100 * sum(each.right for each in well) / max(1, len(well)), 2),
        "eased": round(sum(each.eased for each in well) / max(1, len(well)), 4),
    }


def main() -> None:
    """Parse the command line, send and tell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="the server's root")
    parser.add_argument("--data", type=Path, default=default_data(), metavar="PATH", help="<class>/*.jpg")
    parser.add_argument("--rate", type=float, default=100.0, help="images a second; default: 100")
    parser.add_argument("--seconds", type=float, default=10.0, help="of load; default: 10")
    parser.add_argument("--after", type=float, default=5.0, metavar="SECONDS", help="of single requests; default: 5")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    if args.data is None:
        parser.error("name the images by --data")
    if min(args.rate, args.seconds) <= 0 or args.after < 0:
        parser.error("--rate and --seconds must be above 0, --after at least 0")
    check_writable(parser, args.json)
    with told_in_one_line():
        images = list(Dataset.open(args.data).read())
        result = told(asyncio.run(drive(args.url, images, args.rate, args.seconds, args.after)), args.seconds)
        print(json.dumps({name: value for name, value in result.items() if name != "by_second"}, indent=1))
        if args.json is not None:
            args.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
