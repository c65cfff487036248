"""Loads a server and reports its rate and latency."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click

from ensemble_capacity.load.load import Arrivals, Closed, Mode, Target
from ensemble_capacity.load.measure import Duration, Row, measure
from ensemble_capacity.load.protocols import NAMES, Classify, chosen
from ensemble_capacity.load.report import Report
from ensemble_capacity.load.search import search
from ensemble_models.client import KEY
from ensemble_models.dataset import SUFFIXES, Dataset, check_image
from ensemble_models.options import FILE, POSITIVE, SHARE, Command, Number, file_options, option, write_files
from ensemble_serving.transports import NoResponse, Response, ResponseTimeout
from ensemble_serving.url import parsed
from scripts.errors import DatasetError, ScriptError
from scripts.shipped import shipped

# The first request: the server may have to warm up.
FIRST_TIMEOUT_S = 30.0
MOST_IMAGES, MOST_MEASURED_WITH = 10_000, 32
CLIENTS, USUAL = click.IntRange(1, 10_000), 8


def image_files(paths: Sequence[Path]) -> list[Path]:
    """Find the files to send: files as they are named, and the images of folders; a cat by default.

    Raises:
        ScriptError: a folder has no image.
    """
    found: list[Path] = []
    for path in paths or [shipped("tests/cat.jpg")]:
        files = sorted(file for file in path.rglob("*") if file.suffix.lower() in SUFFIXES) if path.is_dir() else [path]
        if not files:
            raise ScriptError(f"--images: there is no image in {path}")
        found += files
    return found[:MOST_IMAGES]


def photographs(paths: Sequence[Path]) -> list[bytes]:
    """Read images to measure with; of a large folder, some in equal distances.

    Raises:
        ScriptError: a file is no image.
    """
    files = image_files(paths)
    files = files[:: -(-len(files) // MOST_MEASURED_WITH)]
    images = [file.read_bytes() for file in files]
    for file, encoded in zip(files, images, strict=True):
        check_image(str(file), encoded)
    return images


def target_of(options: SimpleNamespace) -> Target:
    """Make the target of a command line.

    Raises:
        ScriptError: an option's value can't be used; the message names the option.
    """
    try:
        url = parsed(options.url)
        protocol = chosen(url, options.protocol, options.model, dict(options.shape))
    except ValueError as err:
        raise ScriptError(f"{'URL' if options.protocol is None else '--protocol'}: {err}") from err
    if options.shape and isinstance(protocol, Classify):
        raise ScriptError(f"--shape: {protocol.path} takes images as they are; it is for models with tensors")
    if options.ca is not None and url.scheme in {"http", "grpc"}:
        raise ScriptError(f"--ca: {url.scheme}:// has no certificate; it is for https:// and grpcs://")
    images, labels = _images(options)
    if options.repeats is not None and not all(image.startswith(b"\xff\xd8") for image in images):
        raise ScriptError("--repeats: every image must be a JPEG")
    return Target(
        url=options.url,
        protocol=protocol,
        images=images,
        labels=labels if isinstance(protocol, Classify) and options.batch == 1 else (),
        batch=options.batch,
        repeats=options.repeats,
        key=os.environ.get(KEY, ""),
        ca_file=options.ca,
        timeout_s=options.timeout,
        connections=options.connections,
    )


def _images(options: SimpleNamespace) -> tuple[tuple[bytes, ...], tuple[str, ...]]:
    """Read the images to send, and their labels if they have any."""
    if options.data is None:
        try:
            return tuple(file.read_bytes() for file in image_files(options.images)), ()
        except OSError as err:
            raise ScriptError(f"--images: {err}") from err
    try:
        dataset = Dataset.open(options.data)
        # Of every class, and the same ones each time.
        pairs = list((dataset.held_out(MOST_IMAGES) if len(dataset) > MOST_IMAGES else dataset).read())
    except DatasetError as err:
        raise ScriptError(f"--data: {err}") from err
    return tuple(image for image, _ in pairs), tuple(label for _, label in pairs)


def described(target: Target) -> Target:
    """Add the server's description of the model to the target, and send a first request.

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


def check(options: SimpleNamespace) -> None:
    """Raise UsageError for options that contradict each other."""
    modes = [f"--{name}" for name in ("concurrency", "rate") if getattr(options, name)]
    if modes and options.slo_ms:
        raise click.UsageError(f"--slo-ms: searches the rate by itself, not together with {', '.join(modes)}")
    if len(modes) > 1:
        raise click.UsageError(f"{', '.join(modes)}: name one of them")
    if options.percentile and not options.slo_ms:
        raise click.UsageError("--percentile: is for --slo-ms")
    if options.images and options.data:
        raise click.UsageError("--images: not together with --data")
    if options.repeats is not None and (options.batch > 1 or options.data):
        raise click.UsageError("--repeats: not together with --batch or --data")


class Shape(click.ParamType[Any]):
    """An input's extents, as in `NAME:3,224,224`."""

    name = "shape"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """See `click.ParamType.convert`."""
        name, _, extents = str(value).rpartition(":")
        numbers = extents.split(",")
        if not name or not all(each.strip().isdigit() and int(each) > 0 for each in numbers):
            self.fail("must be like image:3,224,224, extents without the batch", param, ctx)
        return name, tuple(map(int, numbers))


@click.command("load", cls=Command)
@click.argument("url")
@option("--images", type=FILE, multiple=True, metavar="PATH...", help="Files and folders to send; default: one cat.")
@option("--data", type=FILE, help="Labelled images to send, <class>/*.jpg, folder or zip.")
@option("--batch", type=click.IntRange(1, 64), default=1, help="Images per request.")
@option("--repeats", type=SHARE, help="Share of requests whose JPEG was sent before; the others are new.")
@option("--protocol", type=click.Choice(NAMES), help="Default: by the URL's path; for gRPC open-inference.")
@option("--model", default="ensemble", help="The model's name at the server.")
@option("--shape", type=Shape(), multiple=True, metavar="INPUT:H,W...", help="Dimensions that the server leaves open.")
@option("--ca", type=FILE, help=f"Certificate to trust, PEM; a key is read from {KEY}.")
@option("--concurrency", type=CLIENTS, multiple=True, metavar="N...", help="Clients of a closed loop; default: 8.")
@option(
    "--rate",
    type=Number(),
    multiple=True,
    metavar="R...",
    help="An open loop of Poisson arrivals, requests per second.",
)
@option("--slo-ms", type=Number(), help="Search the highest rate at which the percentile is at most this.")
@option("--percentile", type=Number(below=100), help="Percentile of the latency for --slo-ms; default: 99.")
@option("--seconds", type=Number(), default=15.0, help="Time of each load that is measured.")
@option("--warm-up", type=Number(or_zero=True), default=1.0, help="Time of load before the measurement, seconds.")
@option("--timeout", type=Number(), default=60.0, help="Deadline of a request, seconds.")
@option("--connections", type=POSITIVE, help="Most connections; default: 1,000, for gRPC up to 8.")
@file_options("json", "markdown")
def main(**given: Any) -> None:
    """Load a server and report its rate and latency.

    ensemble load http://127.0.0.1:8000                                   # 8 clients at a time
    ensemble load http://127.0.0.1:8000 --concurrency 1 8 32
    ensemble load grpc://127.0.0.1:9000 --rate 100 200
    ensemble load http://127.0.0.1:8000 --slo-ms 50 --percentile 99       # the highest rate that holds
    ensemble load http://triton:8000/v2 --model resnet --batch 8

    URL is http://host:port[/path][?query], https://, grpc://host:port or grpcs://. The command loads any server
    of the Open Inference Protocol or of TensorFlow Serving's API, and any server that takes an image as the body of a
    POST. The POST goes to the URL's path, by default /classify, with its query. Latency counts from the time at which
    a request was due. The column `thirds` shows whether rate and mean latency of the thirds of a load differ by at most
    10 %. The exit status is 1 if every request failed. See docs/capacity.md.
    """
    options = SimpleNamespace(**given)
    check(options)
    try:
        rows = loaded(options, described(target_of(options)))
    except (ScriptError, OSError) as err:
        raise click.UsageError(str(err)) from err
    if not any(row.requests for row in rows):
        sys.exit(1)


def loaded(options: SimpleNamespace, target: Target) -> list[Row]:
    """Measure every load and report the rows; of a run that ends early, the measured rows."""
    rows: list[Row] = []
    found, percentile = None, options.percentile or 99.0
    duration = Duration(options.warm_up, options.seconds, None if options.slo_ms is None else percentile)

    def run(mode: Mode) -> Row:
        rows.append(row := measure(target, mode, duration, watched=True))
        print(f"{row.name}: {row.requests_per_s:,.1f} requests/s", file=sys.stderr)
        return row

    try:
        if options.slo_ms is None:
            modes: list[Mode] = [*map(Arrivals, options.rate), *map(Closed, options.concurrency)]
            list(map(run, modes or [Closed(USUAL)]))
        elif search(options.slo_ms, run):
            found = len(rows) - 1
    finally:
        if rows:
            report = Report(options.url, target.protocol.name, rows, options.slo_ms, percentile, found)
            (table := report.table()).show()
            print(*report.remarks(), sep="\n")
            write_files(options, table, report)
    return rows


if __name__ == "__main__":
    main()
