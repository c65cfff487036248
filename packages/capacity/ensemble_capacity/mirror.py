"""Sends recorded images to another server at their recorded times, and compares its answers with the recorded ones."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import msgspec
import numpy as np
from msgspec.structs import replace
from tqdm import tqdm

from deployments.contract.proportion import wilson
from ensemble_capacity.recording import SUFFIX, Recorded
from ensemble_models.client import KEY, NO_ANSWER, no_answer
from ensemble_models.options import FILE, Command, file_options, option, write_files
from ensemble_models.statistics import verdict
from ensemble_serving import Client, EnsembleError, NoResponse
from scripts.errors import ScriptError

# Requests in flight; further ones wait, and are late.
MOST = 1000
# An image is faster on a server that takes a tenth less time than the other one.
FASTER = 0.9


def read(folder: Path) -> list[Recorded]:
    """Read the recorded images of every replica, in the order of their times.

    Raises:
        ScriptError: there is none, or a file holds something else.
    """
    found: list[Recorded] = []
    for file in sorted(folder.glob(f"*{SUFFIX}")):
        try:
            # The last line is empty, or it is being written.
            found += map(msgspec.json.Decoder(Recorded).decode, file.read_bytes().split(b"\n")[:-1])
        except msgspec.MsgspecError as err:
            raise ScriptError(f"{file} is no recording: {err}") from err
    if not found:
        raise ScriptError(f"{folder} has no recording; docs/capacity.md shows how a server records")
    return sorted(found, key=lambda each: each.at_s)


async def send(url: str, images: Sequence[Recorded], ca: Path | None) -> list[Recorded]:
    """Send each image at its recorded time, whatever becomes of the others; return the answers in that order.

    Raises:
        ScriptError: there is no server.
    """
    begin = time.monotonic() - images[0].at_s
    try:
        client = Client(url, key=os.environ.get(KEY), ca_file=ca, concurrency=MOST, patience_s=0, reconnect_s=0)
    except ValueError as err:
        raise ScriptError(f"{url}: {err}") from err

    async def one(each: Recorded) -> Recorded:
        await asyncio.sleep(begin + each.at_s - time.monotonic())
        try:
            answer = await client.classify(each.image, **{**each.options, "timings": True})
        except EnsembleError as err:
            return replace(each, error=err.code)
        except NoResponse as err:
            if not client.was_reached:
                raise no_answer(url, err) from err
            return replace(each, error=NO_ANSWER)
        ends = [timing.start_ms + timing.duration_ms for timing in answer.timings or ()]
        return replace(each, label=answer.label, took_ms=max(ends, default=0.0), error="")

    async with client:
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one(each)) for each in images]
                for task in tqdm(tasks, unit="image", mininterval=0.5, delay=1, leave=False, disable=None):
                    await asyncio.wait([task])
        except* ScriptError as errors:
            raise errors.exceptions[0] from None
    return [task.result() for task in tasks]


def compared(before: Sequence[Recorded], after: Sequence[Recorded]) -> dict[str, Any]:
    """Compare answers with the recorded ones: labels by their agreement, times and errors by McNemar's exact test."""
    pairs = list(zip(before, after, strict=True))
    both = [(old, new) for old, new in pairs if not old.error and not new.error]
    faster, slower = (sum(is_better(*each) for each in order) for order in (((b, a) for a, b in pairs), pairs))
    low, share, high = wilson(sum(old.label == new.label for old, new in both), len(both))
    times = np.array([(old.took_ms, new.took_ms) for old, new in both]).reshape(-1, 2)
    quantiles = np.quantile(times, (0.5, 0.99), axis=0, method="inverted_cdf").tolist() if both else []
    reached = verdict(0, faster, slower, len(pairs) - faster - slower)
    return {
        "images": len(pairs),
        "failed": [sum(bool(each.error) for each in answers) for answers in (before, after)],
        "compared": len(both),
        **{"agreement": share, "low": low, "high": high},
        "ms": dict(zip(("p50", "p99"), quantiles, strict=False)),
        **{"faster": faster, "slower": slower, "p": reached.p, "verdict": str(reached)},
    }


def is_better(one: Recorded, other: Recorded) -> bool:
    """Tell whether an answer came where the other one failed, or in clearly less time."""
    return not one.error and (bool(other.error) or one.took_ms < FASTER * other.took_ms)


def sentences(found: dict[str, Any]) -> list[str]:
    """Describe a comparison in words."""
    share = f"{found['agreement']:.2%} ({found['low']:.2%} to {found['high']:.2%})" if found["compared"] else "none"
    times = ", ".join(f"{name} {old:.1f} recorded, {new:.1f} here" for name, (old, new) in found["ms"].items())
    return [
        f"{found['images']:,} images; {found['failed'][0]:,} had failed, {found['failed'][1]:,} failed here",
        f"labels: agree on {share} of {found['compared']:,} images",
        f"time in the server, ms: {times}",
        f"faster on {found['faster']:,} images, slower or failed on {found['slower']:,}",
        f"{found['verdict']} (p = {found['p']:.2g})",
    ]


@click.command("mirror", cls=Command)
@click.argument("url")
@click.argument("folder", type=FILE)
@option("--ca", type=FILE, help=f"Certificate to trust, PEM; a key is read from {KEY}.")
@file_options("json")
def main(url: str, folder: Path, ca: Path | None, json: Path | None) -> None:
    """Send recorded images to another server at their recorded times, and compare the answers.

    ensemble mirror http://127.0.0.1:8100 /var/lib/recorded

    FOLDER is the folder of the feature `ensemble_capacity.recording:Recording`. Both times count in the server, from
    the queue to the end of the last node. "promote" and "don't" are the verdict of McNemar's exact test, at 5 %, on
    the images that only one server answers, or answers in a tenth less time; where they don't decide, "need N more"
    says how many images would. See docs/capacity.md.
    """
    images = read(folder)
    found = compared(images, asyncio.run(send(url, images, ca)))
    print("\n".join(sentences(found)))
    write_files(SimpleNamespace(json=json), None, found)


if __name__ == "__main__":
    main()
