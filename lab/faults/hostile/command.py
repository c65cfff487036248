"""Sends hostile input to a running server, and reports what became of it.

    ensemble faults hostile                              # 10,000 inputs, then originals side by side
    ensemble faults hostile --seed 7 --first 4711 --inputs 1 --formats    # one that failed, alone

An input is made from the seed and its number: pictures mutated and truncated, bombs, forms, JSON, gRPC, HTTP. Then 64
pictures of 49 megapixels of each format are sent side by side. Meanwhile a client that means well asks again and again,
and must be answered right. Failed is an input that a status of 5xx answers (but 503 with `Retry-After`), or that is not
answered within the deadline. The exit status is 1 if anything failed.
"""

from __future__ import annotations

from collections.abc import Sequence

from tqdm import tqdm

from lab.faults.hostile.campaign import HEADINGS, SIDE_BY_SIDE, campaign, rows
from lab.faults.hostile.pictures import FLAT
from scripts.errors import at_least_zero, errors_in_one_line
from scripts.flags import described
from scripts.results import Table, add_files, check_files, write_files
from scripts.serve.environment import set_up

INPUTS = 10_000
SEED = 1


def main(arguments: Sequence[str]) -> None:
    """Parse the command line, send, and tell."""
    parser = described(__doc__, "ensemble faults hostile")
    parser.add_argument("--inputs", type=at_least_zero, default=INPUTS, help="of the corpus; default: %(default)s")
    parser.add_argument("--seed", type=int, default=SEED, help="of the corpus; default: %(default)s")
    parser.add_argument("--first", type=at_least_zero, default=0, metavar="NUMBER", help="of the first input")
    parser.add_argument("--formats", nargs="*", default=list(FLAT), metavar="FORMAT", help="of the originals")
    parser.add_argument("--placement", choices=("separate", "colocated"), default="separate")
    add_files(parser, "markdown")
    args = parser.parse_args(arguments)
    if unknown := [name for name in args.formats if name not in FLAT]:
        parser.error(f"there is no format {unknown[0]!r}; there are {', '.join(FLAT)}")
    check_files(parser, args)
    numbers = range(args.first, args.first + args.inputs)
    with errors_in_one_line():
        set_up()
        with tqdm(total=len(numbers) + SIDE_BY_SIDE * len(args.formats), unit="input") as bar:
            report = campaign(args.seed, numbers, args.formats, args.placement, bar.update)
    # Those of what is sent, and of what it is answered with.
    table = Table(HEADINGS, rows(report), words=(0, 2))
    table.show()
    print(f"Seed {args.seed}. Memory: {report.before_mb:,.0f} MB before, {report.after_mb:,.0f} MB after.")
    for failure in report.failures:
        print(failure)
    write_files(args, table)
    if report.failures:
        raise SystemExit(1)
