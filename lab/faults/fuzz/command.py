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
from collections.abc import Sequence
from pathlib import Path

from tqdm import tqdm

from ensemble_models.results import add_files, check_files, write_files
from lab.benchmark.systems import HTTP_PORT
from lab.faults.fuzz.corpus import Corpus
from lab.faults.fuzz.http import MOST_BYTES
from lab.faults.fuzz.images import FLAT, largest
from lab.faults.fuzz.inputs import Input
from lab.faults.fuzz.runner import HOST, Cost, Runner, document, families, fuzzed, worst
from scripts.errors import at_least_zero, errors_in_one_line, positive
from scripts.flags import described
from scripts.serve.environment import set_up

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
                table = worst(costs) if args.at_once == 1 else families(costs)
                write_files(args, table, {"seed": args.seed, "costs": [cost.record() for cost in costs]})
    table.show()
    found = [cost for cost in costs if cost.is_finding]
    print(f"Seed {args.seed}: {len(costs):,} inputs, {len(found):,} findings. Bystander: {runner.answers:,} answers.")
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
