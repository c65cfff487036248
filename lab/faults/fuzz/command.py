"""Fuzzes a server over HTTP and gRPC, and reports failures and the inputs that cost most.

    ensemble faults fuzz                                     # ten minutes, one input after the other
    ensemble faults fuzz --at-once 16 --inputs 10000 --originals
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
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

from tqdm import tqdm

from ensemble_models.results import write_files
from lab.benchmark.systems import HTTP_PORT
from lab.faults.fuzz.grpc import GrpcFuzzer
from lab.faults.fuzz.http import HttpFuzzer
from lab.faults.fuzz.images import FLAT, largest
from lab.faults.fuzz.inputs import MIB, MOST_BYTES, Input
from lab.faults.fuzz.runner import HOST, Cost, Runner, document, families, fuzzed
from lab.flags import add_files, at_least_zero, check_files
from scripts.errors import errors_in_one_line, positive
from scripts.flags import described
from scripts.serve.environment import set_up

# How many of a hundred inputs are of a family.
SHARES = {
    "mutated images": 20,
    "truncated images": 8,
    "bombs": 10,
    "parts": 6,
    "a photograph": 1,
    "49 megapixels": 1,
    "as large as may be": 1,
    "forms": 9,
    "JSON": 11,
    "binary tensors": 2,
    "bodies": 2,
    "heads": 3,
    "HTTP": 13,
    "gRPC messages": 4,
    "gRPC calls": 1,
    "gRPC fields": 6,
    "HTTP/2 frames": 2,
}
LARGE = ("49 megapixels", "as large as may be")
# Smaller inputs are not made from images that are megabytes themselves.
LEAST_FOR_LARGE = 8 * MIB
SIZES = (8, 2**10, 2**16, 2**18, MIB, 8 * MIB, MOST_BYTES)
# One input in four goes to the next route or method, with whatever can be made for it.
NEXT_ENDPOINT = 4


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
        self.endpoints = [(fuzzer, where) for fuzzer in fuzzers for where in fuzzer.endpoints]
        Random(seed).shuffle(self.endpoints)
        self.kinds: dict[str, list[tuple[HttpFuzzer | GrpcFuzzer, str, str]]] = defaultdict(list)
        for fuzzer, where in self.endpoints:
            for what in fuzzer.kinds[where]:
                family = what.partition(":")[0]
                if family not in LARGE or largest >= LEAST_FOR_LARGE:
                    self.kinds[family].append((fuzzer, where, what))

    def made(self, number: int) -> Input:
        """Make the input of this number."""
        rng = Random(f"{self._seed}/{number}")
        turn, rest = divmod(number, NEXT_ENDPOINT)
        if rest == 0:
            fuzzer, where = self.endpoints[turn % len(self.endpoints)]
            what = rng.choice([each for each in fuzzer.kinds[where] if each.partition(":")[0] not in LARGE])
            # Each endpoint is asked with a key and without in turn.
            shows_key = turn // len(self.endpoints) % 2 == 0
        else:
            [family] = rng.choices(list(self.kinds), [SHARES[each] for each in self.kinds])
            fuzzer, where, what = rng.choice(self.kinds[family])
            shows_key = rng.random() < 0.7
        # This input shows a key of its own, which is nobody's.
        key = self._key if shows_key and what != "HTTP: a long key" else ""
        return fuzzer.made(where, what, key, rng, round(rng.choice(self._sizes) * rng.uniform(0.6, 1)))


MINUTES, SEED = 10, 1
# The largest input where several are sent at once, bytes.
SMALL = 2**16
SIDE_BY_SIDE = 64


def originals(name: str, key: str) -> dict[int, Input]:
    """Return the largest image of a format, as often as it is sent at once."""
    image = largest(name)
    head = f"POST /classify HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAuthorization: Bearer {key}\r\n"
    content = f"{head}Content-Length: {len(image)}\r\n\r\n".encode() + image
    sent = Input("POST /classify", f"originals, {SIDE_BY_SIDE} at once, {name}", content, with_key=True)
    return dict.fromkeys(range(SIDE_BY_SIDE), sent)


def main(arguments: Sequence[str]) -> None:
    """Parse the command line, send, and report."""
    parser = described(__doc__, "ensemble faults fuzz")
    add = parser.add_argument
    add("--minutes", type=positive, default=MINUTES, help="how long to send; default: %(default)s")
    add("--inputs", type=positive, help="send this many inputs, however long it takes")
    add("--seed", type=int, default=SEED, help="default: %(default)s")
    add("--only", type=at_least_zero, nargs="+", metavar="NUMBER", help="send these inputs alone")
    add("--at-once", type=positive, default=1, help="inputs to send at the same time; default: %(default)s")
    add(
        "--originals",
        action="store_true",
        help=f"then send {SIDE_BY_SIDE} images of 49 megapixels of each format at once",
    )
    add("--placement", choices=("separate", "colocated"), default="separate")
    add_files(parser, "json", "markdown")
    args = parser.parse_args(arguments)
    check_files(parser, args)
    costs: list[Cost] = []
    with errors_in_one_line(), tempfile.TemporaryDirectory() as folder:
        set_up()
        formats = list(FLAT) if args.originals else []
        for name in formats:
            # Made before the server is watched, and kept: it takes memory and time as well.
            largest(name)
        with fuzzed(args.placement, Path(folder)) as (runner, key):
            most = MOST_BYTES if args.at_once == 1 else SMALL
            corpus = Corpus(document(f"http://{HOST}:{HTTP_PORT}"), args.seed, key, most)
            try:
                _send(runner, corpus, args, costs)
                for name in formats:
                    costs += runner.volley(originals(name, key))
            finally:
                # Also of a run that ends early.
                table = families(costs)
                write_files(args, table, {"seed": args.seed, "costs": [cost.record() for cost in costs]})
    table.show()
    found = [cost for cost in costs if cost.is_finding]
    answers = runner.bystander.answers
    print(f"Seed {args.seed}: {len(costs):,} inputs, {len(found):,} findings. Bystander: {answers:,} answers.")
    for cost in found:
        print(f"{cost.number}: {cost.where}, {cost.what}: {cost.failure or f'{cost.excess:.2f} of its limit'}")
    if found:
        raise SystemExit(1)


def _send(runner: Runner, corpus: Corpus, args: argparse.Namespace, costs: list[Cost]) -> None:
    chosen = args.only or (args.inputs and range(args.inputs))
    numbers = iter(chosen or itertools.count())
    ends = float("inf") if chosen else time.monotonic() + args.minutes * 60
    with tqdm(total=len(chosen) if chosen else None, unit="input") as bar:
        while time.monotonic() < ends and (volley := list(itertools.islice(numbers, args.at_once))):
            inputs = {number: corpus.made(number) for number in volley}
            sent = [runner.cost(*each) for each in inputs.items()] if args.at_once == 1 else runner.volley(inputs)
            for cost in sent:
                if cost.is_finding:
                    bar.write(f"{cost.number}: {cost.where}, {cost.what}: {cost.status} {cost.failure or ''}")
            costs += sent
            bar.update(len(sent))
            bar.set_postfix(findings=sum(each.is_finding for each in costs))
