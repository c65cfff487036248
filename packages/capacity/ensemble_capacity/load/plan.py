"""What a command line means: what is loaded, how, and for how long."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Sequence
from pathlib import Path

from ensemble_capacity.load.arrivals import Arrivals
from ensemble_capacity.load.duration import Duration
from ensemble_capacity.load.load import Closed, Mode, Target
from ensemble_capacity.load.protocols import chosen
from ensemble_capacity.load.protocols.classify import Classify
from ensemble_serving.url import parsed
from scripts.client import KEY
from scripts.dataset import SUFFIXES, Dataset
from scripts.errors import DatasetError, ScriptError
from scripts.shipped import shipped

MOST_IMAGES = 10_000


def target(args: argparse.Namespace) -> Target:
    """What is loaded.

    Raises:
        ScriptError: a flag's value can't be used; the message names the flag.
    """
    try:
        url = parsed(args.url)
        protocol = chosen(url, args.protocol, args.model, dict(args.shape))
    except ValueError as err:
        raise ScriptError(f"{'URL' if args.protocol is None else '--protocol'}: {err}") from err
    if args.shape and isinstance(protocol, Classify):
        raise ScriptError(f"--shape: {protocol.path} takes images as they are; it is for models with tensors")
    if args.ca is not None and url.scheme in {"http", "grpc"}:
        raise ScriptError(f"--ca: {url.scheme}:// has no certificate; it is for https:// and grpcs://")
    images, labels = _labelled(args.data) if args.data is not None else (_images(args.images), ())
    judged = isinstance(protocol, Classify) and args.batch == 1
    if args.repeats is not None and not all(image.startswith(b"\xff\xd8") for image in images):
        raise ScriptError("--repeats: every image must be a JPEG")
    return Target(
        url=args.url,
        protocol=protocol,
        images=images,
        labels=labels if judged else (),
        batch=args.batch,
        repeats=args.repeats,
        key=os.environ.get(KEY, ""),
        ca_file=args.ca,
        timeout_s=args.timeout,
        connections=args.connections,
    )


def modes(args: argparse.Namespace) -> list[Mode]:
    """The loads, one after the other; for a search the arrivals alone, whose rate does not matter.

    Raises:
        ScriptError: the times to replay are wrong.
    """
    if args.replay is not None:
        times = _times(args.replay)
        return [Arrivals(len(times) / max(times[-1], 1e-9), times=times)]
    if args.rate is not None or args.slo_ms is not None:
        return [Arrivals(rate, args.arrivals, args.cv, seed=args.seed) for rate in args.rate or [1.0]]
    return [Closed(clients) for clients in args.concurrency or [8]]


def duration(args: argparse.Namespace, mode: Mode) -> Duration:
    """How long a load is measured."""
    percentile = args.percentile if args.percentile is not None else (99.0 if args.slo_ms is not None else None)
    if isinstance(mode, Arrivals) and mode.times is not None:
        # To the last request, and no longer.
        return Duration(0.0, mode.times[-1] + 0.001, percentile=percentile)
    return Duration(
        args.warm_up,
        args.seconds,
        args.window,
        args.stability / 100,
        trials=args.trials,
        percentile=percentile,
        limit_ms=args.slo_ms,
    )


def image_files(paths: Sequence[Path] | None) -> list[Path]:
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


def _images(paths: Sequence[Path] | None) -> tuple[bytes, ...]:
    try:
        return tuple(file.read_bytes() for file in image_files(paths))
    except OSError as err:
        raise ScriptError(f"--images: {err}") from err


def _labelled(path: Path) -> tuple[tuple[bytes, ...], tuple[str, ...]]:
    try:
        dataset = Dataset.open(path)
        # Of every class, and the same ones each time.
        part = dataset.hold_out(MOST_IMAGES)[1] if len(dataset) > MOST_IMAGES else dataset
        pairs = list((part or dataset).read())
    except DatasetError as err:
        raise ScriptError(f"--data: {err}") from err
    return tuple(image for image, _ in pairs), tuple(label for _, label in pairs)


def _times(path: Path) -> tuple[float, ...]:
    """Times to replay, seconds from the first."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as err:
        raise ScriptError(f"--replay: {err}") from err
    times: list[float] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            time = float(line)
        except ValueError:
            time = math.nan
        if not math.isfinite(time):
            raise ScriptError(f"--replay: {path}, line {number}: {line.strip()[:40]!r} is no number of seconds")
        if times and time < times[-1]:
            raise ScriptError(f"--replay: {path}, line {number}: {time:g} comes after {times[-1]:g}; sort the times")
        times.append(time)
    if not times:
        raise ScriptError(f"--replay: {path} has no times")
    return tuple(time - times[0] for time in times)
