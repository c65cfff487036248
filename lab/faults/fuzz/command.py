"""Fuzzes a server over HTTP and gRPC, and reports failures and the inputs that cost most.

    ensemble faults fuzz                                     # ten minutes, one input after the other
    ensemble faults fuzz --at-once 16 --inputs 10000         # then large images side by side
    ensemble faults fuzz --seed 7 --only 4711                # one input that was found, again

The command makes an input of its seed and number, of the server's own OpenAPI document and protos, and of hand-made
cases in lab/faults/fuzz/corpus.yaml. Inputs are damaged images, bombs, images of a million parts, forms, long and deep
JSON, gRPC messages, compressed bodies, and request smuggling. Every route and gRPC method receives them, with a key and
without. Meanwhile a bystander sends a photograph every 50 ms. Schemathesis has tests of its own for the OpenAPI
document.

A failure is a status of 5xx (but 503 with `Retry-After`), no answer within the deadline, a process that ends, or a
wrong answer to the bystander. Inputs that are sent alone also have a cost: the bystander's longest wait, and the growth
of the memory of the server's processes. The command sends an input that breaks a limit twice more, and reports the
least cost. The exit status is 1 after a failure or a broken limit.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import click
import httpx
from tqdm import tqdm

from ensemble_models.options import COUNT, POSITIVE, Command, file_options, option
from lab.faults.campaign import report
from lab.faults.fuzz.corpus import MIB
from lab.faults.fuzz.images import FORMATS, largest
from lab.faults.fuzz.requests import CLASSIFY, FAMILIES, LARGE, MOST_BYTES, Endpoint, Input, endpoints
from lab.faults.fuzz.runner import URL, badness, fuzzed
from lab.rows import Part, Row, Rows, measured

SIZES = (8, 2**10, 2**16, 2**18, MIB, 8 * MIB, MOST_BYTES)
# The largest input where several are sent at once; the least that may be an image of megabytes.
SMALL, LEAST_FOR_LARGE = 2**16, 8 * MIB
SIDE_BY_SIDE = 64
COLUMNS = (
    "what is sent {family} | inputs {inputs:,} | answered {statuses} | failures {failures:,} | "
    "slowest, s {seconds:.1f} | bystander waits, s {wait_s:.2f} | memory, MB {memory_mb:,.0f} | "
    "share of the limit {share_of_limit:.2f} | number of the worst {number:d}"
)


class Corpus:
    """Every input for every route and gRPC method; half of them show a key, if there is one."""

    def __init__(self, document: Mapping[str, Any], seed: int, key: str = "", largest: int = MOST_BYTES) -> None:
        """Set the server's OpenAPI document, the seed and the key, and about how many bytes an input may have."""
        self._seed, self._keys = seed, (key, "")
        self._sizes = [round(size * part) for size in SIZES for part in (0.7, 1) if size <= largest]
        self._families = [name for name in FAMILIES if name != LARGE or largest >= LEAST_FOR_LARGE]
        self.endpoints = list(endpoints(document))

    def made(self, number: int) -> Input:
        """Make the input of this number."""
        rng = Random(f"{self._seed}/{number}")
        [family] = rng.choices(self._families, [FAMILIES[each][0] for each in self._families])
        _, fits, make = FAMILIES[family]
        at = rng.choice([each for each in self.endpoints if fits(each)])
        return replace(make(at, rng, rng.choice(self._sizes)), family=family).keyed(rng.choice(self._keys))


def originals(name: str, key: str) -> dict[int, Input]:
    """Return the largest image of a format, as often as it is sent at once."""
    sent = Endpoint(CLASSIFY).request(Random(0), name, largest(name), b"Content-Type: image/jpeg").keyed(key)
    return dict.fromkeys(range(SIDE_BY_SIDE), replace(sent, family=f"originals, {SIDE_BY_SIDE} at once"))


def sent(minutes: int, inputs: int | None, seed: int, only: Sequence[int], at_once: int) -> Iterator[Row]:
    """Start a server, send it inputs, and yield a row for each; Ctrl-C ends the run, and its rows are reported."""
    # Made before the server is watched, and kept: it takes memory and time as well.
    formats = [name for name in FORMATS if at_once > 1 and not only and largest(name)]
    chosen = only or (range(inputs) if inputs else None)
    numbers = iter(chosen or itertools.count())
    with (
        suppress(KeyboardInterrupt),
        tempfile.TemporaryDirectory() as folder,
        fuzzed(Path(folder)) as (runner, key),
        tqdm(total=len(chosen) if chosen else None, unit="input") as bar,
    ):
        document = httpx.get(f"{URL}/openapi.json", timeout=30).json()
        corpus = Corpus(document, seed, key, MOST_BYTES if at_once == 1 else SMALL)
        ends = float("inf") if chosen else time.monotonic() + minutes * 60
        while time.monotonic() < ends and (volley := list(itertools.islice(numbers, at_once))):
            made = {number: corpus.made(number) for number in volley}
            yield from map(runner.alone, made, made.values()) if at_once == 1 else runner.volley(made)
            bar.update(len(volley))
        for name in formats:
            yield from runner.volley(originals(name, key))


def note(row: Row) -> str:
    """Describe a finding."""
    reason = row["failure"] or f"{row['share_of_limit']:.2f} of its limit"
    return f"{row['number']}: {row['where']}, {row['family']}: {row['kind']}: {reason}" if row["finding"] else ""


def by_family(rows: Rows) -> Rows:
    """Return a row for each family of inputs: how often each status was seen, and the worst of each measure."""
    groups: dict[str, Rows] = defaultdict(list)
    for each in measured(rows):
        groups[each["family"]].append(each)
    return [_together(groups[name]) for name in sorted(groups)] + [each for each in rows if "error" in each]


def _together(rows: Rows) -> Row:
    statuses = Counter(each["status"] for each in rows).most_common()
    worst: Row = max(rows, key=badness)
    return {
        **worst,
        **{measure: max(each[measure] for each in rows) for measure in ("seconds", "wait_s", "memory_mb")},
        "inputs": len(rows),
        "statuses": ", ".join(f"{status} ({count:,})" for status, count in statuses),
        "failures": sum(bool(each["failure"]) for each in rows),
    }


@click.command("faults fuzz", cls=Command, help=__doc__)
@option("--minutes", type=POSITIVE, default=10, help="How long to send inputs.")
@option("--inputs", type=POSITIVE, help="Send this many inputs, however long it takes.")
@option("--seed", type=int, default=1, help="Of all inputs.")
@option("--only", type=COUNT, multiple=True, metavar="NUMBER...", help="Send these inputs alone.")
@option(
    "--at-once",
    type=POSITIVE,
    default=1,
    help=f"Inputs to send at once; of several, the last are {SIDE_BY_SIDE} large images of each format.",
)
@file_options("json", "markdown")
def main(minutes: int, inputs: int | None, seed: int, only: Sequence[int], at_once: int, **files: Path | None) -> None:
    """Send the inputs."""
    every = Part("inputs", lambda: sent(minutes, inputs, seed, only, at_once), {"campaign": "fuzz"})
    report([every], COLUMNS, files, failed=lambda row: bool(row["finding"]), note=note, shown=by_family)
