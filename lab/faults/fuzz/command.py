"""Fuzzes a server over HTTP and gRPC, and reports failures and the inputs that cost most.

    ensemble faults fuzz                                     # ten minutes, one input after the other
    ensemble faults fuzz --at-once 16 --inputs 10000         # then large images side by side
    ensemble faults fuzz --seed 7 --only 4711                # one input that was found, again

Input number n of a seed is made of the server's own OpenAPI document and protos, and of hand-made cases in
lab/faults/fuzz/corpus.yaml: images mutated and truncated, bombs, images of a million parts, forms, JSON, long and deep
values, compressed bodies, request smuggling, wrong frames of HTTP/2, bodies in many pieces, for every route and gRPC
method, with a key and without. A bystander sends a photograph every 50 ms meanwhile.

A failure is a status of 5xx (but 503 with `Retry-After`), an error without its JSON body, no answer within the
deadline, a process that ends, or a wrong answer to the bystander. Of inputs that are sent one after the other the cost
is measured, too: the bystander's longest wait, and the CPU time and the growth of the memory of all of the server's
processes. An input that breaks a limit is sent twice more, and the least of the three is reported. The exit status is 1
if anything failed or broke a limit.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from tqdm import tqdm

from lab.faults.campaign import Campaign
from lab.faults.fuzz.grpc import GrpcFuzzer
from lab.faults.fuzz.http import HttpFuzzer
from lab.faults.fuzz.images import FORMATS, largest
from lab.faults.fuzz.inputs import MIB, MOST_BYTES, Input, family
from lab.faults.fuzz.runner import URL, badness, document, fuzzed
from lab.flags import at_least_zero
from lab.rows import Part, Row, Rows
from scripts.errors import positive

# How much more often than others the inputs of a family are sent.
SHARES = {"mutated images": 20, "HTTP": 13, "JSON": 11, "bombs": 10, "forms": 9, "truncated images": 8, "parts": 7}
USUAL_SHARE, LARGE = 3, "large images"
SIZES = (8, 2**10, 2**16, 2**18, MIB, 8 * MIB, MOST_BYTES)
# The largest input where several are sent at once; the least that may be an image of megabytes.
SMALL, LEAST_FOR_LARGE = 2**16, 8 * MIB
# One input in four goes to the next route or method, with whatever can be made for it.
NEXT_ENDPOINT = 4
SIDE_BY_SIDE = 64


class Corpus:
    """Every pair of an endpoint and a kind, by the family of the kind.

    Attributes:
        endpoints: routes and gRPC methods, each with its fuzzer.
        kinds: the pairs, by the family of the kind.
    """

    def __init__(self, document: Mapping[str, Any], seed: int, key: str = "", largest: int = MOST_BYTES) -> None:
        """List what can be made.

        Args:
            document: the server's OpenAPI document.
            seed: decides, with its number, each input.
            key: shown by 7 of 10 inputs; empty for none.
            largest: about how many bytes an input may have.
        """
        self._seed, self._key = seed, key
        self._sizes = [size for size in SIZES if size <= largest]
        fuzzers = HttpFuzzer(document), GrpcFuzzer()
        self.endpoints = [(fuzzer, where) for fuzzer in fuzzers for where in fuzzer.kinds]
        Random(seed).shuffle(self.endpoints)
        self.kinds: dict[str, list[tuple[HttpFuzzer | GrpcFuzzer, str, str]]] = defaultdict(list)
        for fuzzer, where in self.endpoints:
            for what in fuzzer.kinds[where]:
                if family(what) != LARGE or largest >= LEAST_FOR_LARGE:
                    self.kinds[family(what)].append((fuzzer, where, what))
        self._shares = [SHARES.get(each, 1 if each == LARGE else USUAL_SHARE) for each in self.kinds]

    def made(self, number: int) -> Input:
        """Make the input of this number."""
        rng = Random(f"{self._seed}/{number}")
        turn, rest = divmod(number, NEXT_ENDPOINT)
        if rest == 0:
            fuzzer, where = self.endpoints[turn % len(self.endpoints)]
            what = rng.choice([each for each in fuzzer.kinds[where] if family(each) != LARGE])
            # Each endpoint is asked with a key and without in turn.
            shows_key = turn // len(self.endpoints) % 2 == 0
        else:
            fuzzer, where, what = rng.choice(self.kinds[rng.choices(list(self.kinds), self._shares)[0]])
            shows_key = rng.random() < 0.7
        # This input shows a key of its own, which is nobody's.
        key = self._key if shows_key and what != "HTTP: a long key" else ""
        return fuzzer.made(where, what, key, rng, round(rng.choice(self._sizes) * rng.uniform(0.6, 1)))


def originals(name: str, key: str) -> dict[int, Input]:
    """Return the largest image of a format, as often as it is sent at once."""
    image = largest(name)
    head = f"POST /classify HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAuthorization: Bearer {key}\r\n"
    content = f"{head}Content-Length: {len(image)}\r\n\r\n".encode() + image
    sent = Input("POST /classify", f"originals, {SIDE_BY_SIDE} at once, {name}", content, with_key=True)
    return dict.fromkeys(range(SIDE_BY_SIDE), sent)


def sent(args: argparse.Namespace) -> Iterator[Row]:
    """Start a server, send it inputs, and give a row for each; of a run that Ctrl-C ends, those that were sent."""
    # Made before the server is watched, and kept: it takes memory and time as well.
    formats = [name for name in FORMATS if args.at_once > 1 and not args.only and largest(name)]
    chosen = args.only or (args.inputs and range(args.inputs))
    numbers = iter(chosen or itertools.count())
    with (
        suppress(KeyboardInterrupt),
        tempfile.TemporaryDirectory() as folder,
        fuzzed(Path(folder)) as (runner, key),
        tqdm(total=len(chosen) if chosen else None, unit="input") as bar,
    ):
        corpus = Corpus(document(URL), args.seed, key, MOST_BYTES if args.at_once == 1 else SMALL)
        ends = float("inf") if chosen else time.monotonic() + args.minutes * 60
        while time.monotonic() < ends and (volley := list(itertools.islice(numbers, args.at_once))):
            inputs = {number: corpus.made(number) for number in volley}
            yield from map(runner.alone, inputs, inputs.values()) if args.at_once == 1 else runner.volley(inputs)
            bar.update(len(volley))
        for name in formats:
            yield from runner.volley(originals(name, key))


def note(row: Row) -> str:
    """Describe a finding."""
    reason = row["failure"] or f"{row['share_of_limit']:.2f} of its limit"
    return f"{row['number']}: {row['where']}, {row['what']}: {reason}" if row["finding"] else ""


def families(rows: Rows) -> Rows:
    """Return a row for each family of inputs: how often each status was seen, and the worst of each measure."""
    groups: dict[str, Rows] = defaultdict(list)
    for each in rows:
        groups[family(each["what"])].append(each)
    return [_together(name, group) for name, group in sorted(groups.items())]


def _together(name: str, rows: Rows) -> Row:
    statuses = Counter(each["status"] for each in rows).most_common()
    worst: Row = max(rows, key=badness)
    return {
        **worst,
        **{measure: max(each[measure] for each in rows) for measure in ("seconds", "wait_s", "cpu_s")},
        "family": name,
        "inputs": len(rows),
        "statuses": ", ".join(f"{status} ({count:,})" for status, count in statuses),
        "failures": sum(each["failure"] is not None for each in rows),
        "memory_mb": max(each["memory"] for each in rows) / 1e6,
    }


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of which inputs are sent."""
    add = parser.add_argument
    add("--minutes", type=positive, default=10, help="how long to send; default: %(default)s")
    add("--inputs", type=positive, help="send this many inputs, however long it takes")
    add("--seed", type=int, default=1, help="default: %(default)s")
    add("--only", type=at_least_zero, nargs="+", metavar="NUMBER", help="send these inputs alone")
    at_once = f"inputs to send at once; of several, the last are {SIDE_BY_SIDE} images as large as may be, per format"
    add("--at-once", type=positive, default=1, help=at_once)


FUZZ = Campaign(
    name="fuzz",
    help=__doc__,
    add_flags=add_flags,
    parts=lambda args: [Part("inputs", partial(sent, args))],
    columns="what is sent {family} | inputs {inputs:,} | answered {statuses} | failures {failures:,} | "
    "slowest, s {seconds:.1f} | bystander waits, s {wait_s:.2f} | CPU, s {cpu_s:.2f} | memory, MB {memory_mb:,.0f} | "
    "share of the limit {share_of_limit:.2f} | number of the worst {number:d}",
    failed=lambda row: row["finding"],
    shown=families,
    note=note,
)
