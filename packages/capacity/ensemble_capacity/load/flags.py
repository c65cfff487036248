"""The flags of `ensemble load`, and one line for what is wrong about them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn, get_args

from ensemble_capacity.load.arrivals import Process
from ensemble_capacity.load.protocols import NAMES
from scripts.client import KEY
from scripts.errors import check_writable, fraction, number, positive, zero_or_more

FILES = ("json", "markdown", "csv", "html")
LARGEST_BATCH, MOST_PROCESSES, MOST_CLIENTS = 64, 64, 10_000


class Parser(argparse.ArgumentParser):
    """Prints what is wrong in one line, and ends with status 2."""

    def error(self, message: str) -> NoReturn:
        """See `argparse.ArgumentParser.error`."""
        self.exit(2, f"{self.prog}: {' '.join(message.split())}\n")


def count(most: int) -> Callable[[str], int]:
    """The type of a flag from 1 to a number."""

    def parse(text: str) -> int:
        if (value := positive(text)) > most:
            raise argparse.ArgumentTypeError(f"at most {most:,}")
        return value

    return parse


def shape(text: str) -> tuple[str, tuple[int, ...]]:
    """The type of `--shape`, as in `NAME:3,224,224`."""
    name, _, extents = text.rpartition(":")
    try:
        found = tuple(map(int, extents.split(",")))
    except ValueError:
        found = ()
    if not name or not found or min(found) < 1:
        raise argparse.ArgumentTypeError("must be like image:3,224,224, extents without the batch")
    return name, found


def parser(description: str) -> Parser:
    """Every flag."""
    made = Parser(prog="ensemble load", description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("url", metavar="URL", help="http://host:port[/path], https://, grpc://host:port or grpcs://")
    # As an earlier version had them.
    made.add_argument("photographs", nargs="*", type=Path, help=argparse.SUPPRESS)
    made.add_argument("--clients", type=positive, nargs=1, help=argparse.SUPPRESS)
    what, when = made.add_argument_group("what is sent"), made.add_argument_group("when it is sent")
    _what(what.add_argument, what.add_mutually_exclusive_group().add_argument)
    _when(when.add_argument, when.add_mutually_exclusive_group().add_argument)
    _how(made.add_argument_group("how it is measured").add_argument)
    _reported(made.add_argument_group("what is reported").add_argument)
    return made


Add = Callable[..., argparse.Action]


def _what(add: Add, add_one: Add) -> None:
    add_one(
        "--images",
        type=Path,
        nargs="+",
        metavar="PATH",
        help="files and folders to send, 10,000 images at most; default: a cat",
    )
    add_one("--data", type=Path, metavar="PATH", help="labelled images to send, <class>/*.jpg, folder or zip")
    add("--batch", type=count(LARGEST_BATCH), default=1, metavar="N", help="images per request, 1 to 64; default: 1")
    add(
        "--repeats",
        type=fraction,
        metavar="SHARE",
        help="share of requests whose JPEG was sent before; the others are new",
    )
    add("--protocol", choices=NAMES, help="default: by the URL's path; for gRPC open-inference")
    add("--model", default="ensemble", help="the model's name at the server; default: ensemble")
    add(
        "--shape", type=shape, nargs="+", default=[], metavar="INPUT:H,W", help="dimensions that the server leaves open"
    )
    add("--ca", type=Path, metavar="FILE", help=f"certificate to trust, PEM; a key is read from {KEY}")


def _when(add: Add, add_one: Add) -> None:
    clients = count(MOST_CLIENTS)
    add_one("--concurrency", type=clients, nargs="+", metavar="N", help="a closed loop of clients; default: 8")
    add_one("--rate", type=number(0), nargs="+", metavar="R", help="an open loop, requests per second")
    add_one("--replay", type=Path, metavar="FILE", help="an open loop at recorded times, seconds, one per line")
    add(
        "--arrivals",
        choices=get_args(Process),
        default="poisson",
        help="distribution of the arrivals of --rate and --slo-ms; default: poisson",
    )
    add(
        "--cv",
        type=number(0),
        default=2.0,
        help="of gamma: coefficient of variation of the gaps; 1 is poisson; default: 2",
    )
    add("--slo-ms", type=number(0), metavar="MS", help="search the highest rate at which the percentile is below this")
    add(
        "--percentile",
        type=number(0, 100),
        help="percentile of the latency for --slo-ms, 99 by default, and for --stability, the mean by default",
    )
    add("--seed", type=int, default=0, help="seed of the arrivals; default: 0")


def _how(add: Add) -> None:
    add("--seconds", type=number(0), help="measure for this time, instead of in windows")
    add("--window", type=number(0), default=5.0, metavar="S", help="length of a window; default: 5 s")
    add(
        "--stability",
        type=number(0),
        default=10.0,
        metavar="%",
        help="largest difference between windows that agree, %%; default: 10",
    )
    add("--trials", type=positive, default=10, help="most windows; default: 10")
    add("--warm-up", type=zero_or_more, default=1.0, metavar="S", help="warm-up before the measurement; default: 1 s")
    add("--timeout", type=number(0), default=60.0, metavar="S", help="longest time of a request; default: 60 s")
    add("--processes", type=count(MOST_PROCESSES), default=1, help="processes that send; default: 1")
    add("--connections", type=positive, help="most connections; default: 1,000, for gRPC up to 8")
    add(
        "--pid",
        type=positive,
        help="process of the server; default: the one that listens on the URL's port, if it is here",
    )


def _reported(add: Add) -> None:
    add("--json", type=Path, metavar="FILE", help="write everything as JSON")
    add("--markdown", type=Path, metavar="FILE", help="write the table")
    add("--csv", type=Path, metavar="FILE", help="write perf_analyzer's columns")
    add("--html", type=Path, metavar="FILE", help="write a page with charts, which opens from disk")
    add(
        "--price-per-hour",
        type=number(0),
        metavar="P",
        help="price of the machine per hour, for the cost of a million images",
    )


def check(made: Parser, args: argparse.Namespace) -> None:
    """End with what is wrong about the flags together."""
    for old, new in (("photographs", "images"), ("clients", "concurrency")):
        if getattr(args, old):
            print(f"{made.prog}: name them by --{new}; a later version takes no {old}", file=sys.stderr)
            setattr(args, new, getattr(args, old))
    check_writable(made, *(getattr(args, name) for name in FILES))
    modes = [f"--{name}" for name in ("concurrency", "rate", "replay") if getattr(args, name) is not None]
    wrong = {
        f"--slo-ms: searches the rate by itself, not together with {modes}": args.slo_ms and modes,
        "--repeats: not together with --batch or --data": args.repeats is not None and (args.batch > 1 or args.data),
    }
    for message, is_wrong in wrong.items():
        if is_wrong:
            made.error(message)
    for where, names in _ignored(args).items():
        for name in names:
            if getattr(args, name) not in (None, made.get_default(name)):
                made.error(f"--{name.replace('_', '-')}: {where}")


def _ignored(args: argparse.Namespace) -> dict[str, Sequence[str]]:
    """The flags that have no effect beside the others that are given, by the reason that their error names."""
    windows, arrivals = ("window", "stability", "trials"), ("arrivals", "cv", "seed")
    return {
        "is for --rate or --slo-ms": () if args.rate or args.slo_ms else arrivals,
        "is for --arrivals gamma": () if args.arrivals == "gamma" else ("cv",),
        "not together with --replay, which lasts as long as its times": ("seconds", "warm_up") if args.replay else (),
        "not together with --seconds or --replay, whose time is fixed": windows if args.seconds or args.replay else (),
    }
