"""Looks for small requests that cost much, and reports the worst.

    ensemble faults amplification                          # ten minutes
    ensemble faults amplification --minutes 60 --markdown worst.md --json costs.json    # the table of docs/security.md
    ensemble faults amplification --seed 7 --only 4711     # one that was found, again

Request number n of a seed is made of the server's own OpenAPI document and protos: long texts, repeated fields, deep
nesting, large numbers, bombs, images of a million parts, bodies in many pieces, for every route and gRPC method, of a
few bytes up to 32 MiB. The first requests go to each route and method with a key and without. They are sent one after
the other. Measured for each are the longest wait of a bystander, who sends a small image every 50 ms, and the CPU
seconds and the growth of the memory of all of the server's processes. A request that breaks a bar is sent twice more,
and the least of the three is reported. The exit status is 1 if any broke one. The server's limits are those of the
shipped configuration.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tqdm import tqdm

from lab.faults.amplification.corpus import Corpus
from lab.faults.amplification.measure import Cost, Measuring, measuring
from lab.faults.amplification.report import told, worst
from scripts.errors import at_least_zero, errors_in_one_line, positive
from scripts.flags import described
from scripts.results import add_files, check_files, write_files
from scripts.serve.environment import set_up

MINUTES, SEED = 10, 1
# What breaks a bar by chance, because other work had the machine, does not break it every time.
ATTEMPTS = 3


def least(measure: Measuring, corpus: Corpus, index: int) -> Cost:
    """What a request costs; of what breaks a bar, the least of some attempts."""
    asked = corpus.made(index)
    found = measure.cost(index, asked)
    for _ in range(ATTEMPTS - 1):
        if not found.is_finding:
            break
        found = min(found, measure.cost(index, asked), key=lambda cost: (cost.failure is not None, cost.excess))
    return found


def main(arguments: Sequence[str]) -> None:
    """Parse the command line, send, and tell."""
    parser = described(__doc__, "ensemble faults amplification")
    parser.add_argument("--minutes", type=positive, default=MINUTES, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=SEED, help="default: %(default)s")
    parser.add_argument("--only", type=at_least_zero, nargs="+", metavar="INDEX", help="these alone")
    parser.add_argument("--placement", choices=("separate", "colocated"), default="separate")
    add_files(parser, "json", "markdown")
    args = parser.parse_args(arguments)
    check_files(parser, args)
    costs: list[Cost] = []
    with errors_in_one_line(), tempfile.TemporaryDirectory() as folder:
        set_up()
        with measuring(args.placement, Path(folder)) as (measure, key):
            corpus = Corpus(measure.document(), args.seed, key)
            try:
                _measure(measure, corpus, args, costs)
            finally:
                # Of what ends early, what was measured.
                table = worst(costs)
                write_files(args, table, {"seed": args.seed, "costs": [cost.record() for cost in costs]})
    table.show()
    print(told(costs, args.seed, len(corpus.pairs), len(corpus.endpoints)))
    if any(cost.is_finding for cost in costs):
        raise SystemExit(1)


def _measure(measure: Measuring, corpus: Corpus, args: argparse.Namespace, costs: list[Cost]) -> None:
    began, last = time.monotonic(), 0.0
    total = len(args.only) if args.only else args.minutes * 60
    with tqdm(total=total, unit="request" if args.only else "s") as bar:
        for index in args.only or range(10**9):
            if not args.only and time.monotonic() - began > args.minutes * 60:
                break
            costs.append(cost := least(measure, corpus, index))
            if cost.is_finding:
                bar.write(f"{cost.index}: {cost.where}, {cost.what}: {cost.status} {cost.failure or ''}")
            now = time.monotonic() - began
            bar.update(1 if args.only else min(round(now - last, 1), total - bar.n))
            bar.set_postfix(requests=len(costs), findings=sum(each.is_finding for each in costs))
            last = now
