"""Loads a server and reports its rate, latency and cost.

    ensemble load http://127.0.0.1:8000                                   # 8 clients at a time
    ensemble load http://127.0.0.1:8000 --concurrency 1 8 32 --html load.html
    ensemble load grpc://127.0.0.1:9000 --rate 100 200 --arrivals poisson
    ensemble load http://127.0.0.1:8000 --slo-ms 50 --percentile 99       # the highest rate that holds
    ensemble load http://triton:8000/v2 --model resnet --batch 8

It loads any server that speaks the Open Inference Protocol or TensorFlow Serving's API, and one that takes an image as
the body of a POST (to the URL's path, by default /classify). Latency counts from when a request was due. A load is
measured in windows until the last three agree, as perf_analyzer does it. The exit status is 1 if every request failed.
See docs/load.md.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

import psutil
from tqdm import tqdm

from ensemble_capacity.load import flags, plan
from ensemble_capacity.load.arrivals import Arrivals
from ensemble_capacity.load.generator import Generator
from ensemble_capacity.load.load import Closed, Mode, Target
from ensemble_capacity.load.measure import measure
from ensemble_capacity.load.report.page import page
from ensemble_capacity.load.report.report import Report, remarks
from ensemble_capacity.load.row import Row
from ensemble_capacity.load.search import Objective, search
from ensemble_capacity.load.server import Server
from ensemble_serving.transports import NoResponse, Response, ResponseTimeout
from scripts.errors import ScriptError

# The first request: the server may have to warm up.
FIRST_TIMEOUT_S = 30.0


def described(target: Target) -> Target:
    """The target with its server's description of the model, after a first request to it.

    Raises:
        ScriptError: the server is not there, has no such model, or refuses the request.
    """

    async def describe() -> tuple[Target, Response]:
        transport = replace(target, timeout_s=FIRST_TIMEOUT_S).connect(1)
        try:
            protocol = await target.protocol.described(transport, target.url, target.key, target.ca_file)
            found = replace(target, protocol=protocol)
            return found, await transport.send(next(found.requests()))
        finally:
            await transport.close()

    try:
        found, response = asyncio.run(describe())
    except ResponseTimeout as err:
        raise ScriptError(f"URL: {target.url} does not answer: {err}") from err
    except NoResponse as err:
        raise ScriptError(f"URL: {err}; is it serving?") from err
    # A server that is full for now is there.
    if not response.ok and response.retry_after_s is None:
        reason = response.body[:300].decode(errors="replace")
        raise ScriptError(f"URL: {target.url} refuses the first request with {response.status}: {reason}")
    return found


def measured(
    args: argparse.Namespace, modes: Sequence[Mode], target: Target, server: Server
) -> Iterator[tuple[Row, bool]]:
    """Measure each load of the command line; each row, and whether it is what a search found."""

    def run(mode: Mode) -> Row:
        duration = plan.duration(args, mode)
        form = "{desc}{percentage:3.0f}%|{bar}| {elapsed} of at most {total:.0f} s{postfix}"
        with tqdm(total=duration.longest_s, desc=name(mode), bar_format=form, leave=False, mininterval=0.5) as bar:

            def tick(generator: Generator) -> None:
                bar.set_postfix_str(f"{generator.count:,} requests, {generator.under_way:,} under way", refresh=False)
                bar.update(min(time.perf_counter() - generator.began, duration.longest_s) - bar.n)

            return measure(target, mode, duration, processes=args.processes, server=server, tick=tick)

    if args.slo_ms is None:
        yield from ((run(mode), False) for mode in modes)
        return
    [arrivals] = modes
    assert isinstance(arrivals, Arrivals)
    percentile = 99.0 if args.percentile is None else args.percentile
    yield from search(Objective(args.slo_ms, percentile), arrivals, run)


def name(mode: Mode) -> str:
    """A load in words."""
    if isinstance(mode, Closed):
        return f"{mode.concurrency} at a time"
    return "replay" if mode.times is not None else f"{mode.rate:.4g}/s"


def report(made: Report, args: argparse.Namespace) -> None:
    """Print the report, and write the files that the flags name."""
    (table := made.table()).show()
    for remark in remarks(made):
        print(remark)
    for file, text in (
        (args.markdown, table.markdown),
        (args.json, made.json),
        (args.csv, made.csv),
        (args.html, lambda: page(made)),
    ):
        if file is not None:
            file.write_text(text(), encoding="utf-8")


def main() -> None:
    """Parse the command line, load and report."""
    parser = flags.parser(__doc__ or "")
    args = parser.parse_args()
    flags.check(parser, args)
    try:
        modes = plan.modes(args)
        target = described(plan.target(args))
        with Server(target, args.model, args.pid) as server:
            rows: list[Row] = []
            found = None
            try:
                for row, is_found in measured(args, modes, target, server):
                    rows.append(row)
                    found = len(rows) - 1 if is_found else None
            finally:
                # Of what ends early, what was measured.
                if rows:
                    spoken, percentile = target.protocol.name, args.percentile or 99.0
                    report(Report(args.url, spoken, rows, args.slo_ms, percentile, found, args.price_per_hour), args)
        if not any(row.requests for row in rows):
            raise SystemExit(1)
    except psutil.NoSuchProcess:
        parser.error(f"--pid: there is no process {args.pid}")
    except (ScriptError, OSError) as err:
        parser.error(str(err))


if __name__ == "__main__":
    main()
