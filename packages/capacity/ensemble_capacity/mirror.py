"""Sends recorded images to another server at their recorded times, and compares its answers with the recorded ones."""

import asyncio
import hashlib
import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import click
import msgspec
import numpy as np
from msgspec.structs import replace
from tqdm import tqdm

from deployments.contract.proportion import Z, wilson
from ensemble_capacity.recording import SUFFIX, Recorded
from ensemble_models.client import KEY, NO_ANSWER, no_answer
from ensemble_models.options import FILE, Command, file_options, option, write_files
from ensemble_models.statistics import Verdict, verdict
from ensemble_serving import Client, EnsembleError, NoResponse
from scripts.errors import ScriptError

# Requests in flight; further ones wait, and are late.
MOST = 1000
# An image is faster on a server that takes a tenth less time than the other one.
FASTER = 0.9
# The share of the images whose labels must be equal before latencies count; one as near to it counts as this far away.
EQUAL, NEAR = 0.99, 0.001
_decode = msgspec.json.Decoder(Recorded).decode


class Place(NamedTuple):
    """Where a recorded image is; the images themselves would fill the memory."""

    at_s: float
    file: Path
    start: int

    def read(self) -> Recorded:
        """Read the image."""
        with self.file.open("rb") as stream:
            stream.seek(self.start)
            return _decode(stream.readline())


def places(folder: Path) -> list[Place]:
    """Find the recorded images of every replica, in the order of their times.

    Raises:
        ScriptError: there is none, or a file holds something else.
    """
    found: list[Place] = []
    for file in sorted(folder.glob(f"*{SUFFIX}")):
        start = 0
        with file.open("rb") as stream:
            # A last line without an end is being written.
            for line in (each for each in stream if each.endswith(b"\n")):
                try:
                    found.append(Place(_decode(line).at_s, file, start))
                except msgspec.MsgspecError as err:
                    raise ScriptError(f"{file} is no recording: {err}") from err
                start += len(line)
    if not found:
        raise ScriptError(f"{folder} has no recording; docs/capacity.md shows how a server records")
    return sorted(found)


@dataclass
class Comparison:
    """Counts how the answers of a second server differ from the recorded ones.

    Attributes:
        images: that were sent.
        failed: of them on the first and on the second server.
        equal: whether every answer had the recorded label, by the image's SHA-256. Only images with a recorded label.
        ms: times of the images that both servers answered, where the second one tells its time.
        faster: images that only the second server answered, or in clearly less time; each image counts once.
        slower: the reverse.
    """

    images: int = 0
    failed: list[int] = field(default_factory=lambda: [0, 0])
    equal: dict[str, bool] = field(default_factory=dict)
    ms: list[tuple[float, float]] = field(default_factory=list)
    faster: set[str] = field(default_factory=set)
    slower: set[str] = field(default_factory=set)

    def add(self, old: Recorded, new: Recorded) -> None:
        """Compare an answer with the recorded one."""
        image = hashlib.sha256(old.image).hexdigest()
        self.images += 1
        self.failed = [count + bool(each.error) for count, each in zip(self.failed, (old, new), strict=True)]
        if not old.error:
            # An answer that fails has no label.
            self.equal[image] = self.equal.get(image, True) and new.label == old.label and not new.error
        if not (old.error or new.error or math.isnan(new.took_ms)):
            self.ms.append((old.took_ms, new.took_ms))
        if is_better(new, old):
            self.faster.add(image)
        if is_better(old, new):
            self.slower.add(image)

    def found(self) -> dict[str, Any]:
        """Return the figures, and the verdict: by the labels, or where enough are equal by failures and latency."""
        count, total = sum(self.equal.values()), len(self.equal)
        low, share, high = wilson(count, total)
        faster, slower = len(self.faster - self.slower), len(self.slower - self.faster)
        by_latency = verdict(0, faster, slower, max(0, self.images - faster - slower))
        quantiles = np.quantile(self.ms, (0.5, 0.99), axis=0, method="inverted_cdf").tolist() if self.ms else []
        return {
            "images": self.images,
            "failed": self.failed,
            "compared": total,
            **{"agreement": share, "low": low, "high": high},
            "differ": [image for image, is_equal in self.equal.items() if not is_equal],
            "ms": dict(zip(("p50", "p99"), quantiles, strict=False)),
            **{"faster": faster, "slower": slower, "p": by_latency.p},
            "verdict": str(by_latency if low >= EQUAL else by_labels(count, total)),
            "judged_by": "failures and latency" if low >= EQUAL else "labels",
        }


def by_labels(count: int, total: int) -> Verdict:
    """Judge a second server of which too few labels are surely equal.

    Wilson's interval excludes the share `EQUAL` from so many images on: Z^2 EQUAL (1 - EQUAL) / (share - EQUAL)^2.
    """
    _, share, high = wilson(count, total)
    if high < EQUAL:
        return Verdict("don't", 0.0)
    distance = max(abs(share - EQUAL), NEAR) if total else 1 - EQUAL
    needed = math.ceil(Z * Z * EQUAL * (1 - EQUAL) / distance**2)
    return Verdict("need more", 1.0, max(1, needed - total))


def is_better(one: Recorded, other: Recorded) -> bool:
    """Tell whether an answer came where the other one failed, or in clearly less time."""
    return not one.error and (bool(other.error) or one.took_ms < FASTER * other.took_ms)


async def send(url: str, images: Sequence[Place], ca: Path | None) -> Comparison:
    """Send each image at its recorded time, whatever becomes of the others, and compare the answers.

    Raises:
        ScriptError: there is no server.
    """
    begin, slots, compared = time.monotonic() - images[0].at_s, asyncio.Semaphore(MOST), Comparison()
    try:
        client = Client(url, key=os.environ.get(KEY), ca_file=ca, concurrency=MOST, patience_s=0, reconnect_s=0)
    except ValueError as err:
        raise ScriptError(f"{url}: {err}") from err

    async def one(each: Recorded) -> Recorded:
        try:
            answer = await client.classify(each.image, **{**each.options, "timings": True})
        except EnsembleError as err:
            return replace(each, error=err.code)
        except NoResponse as err:
            if not client.was_reached:
                raise no_answer(url, err) from err
            return replace(each, error=NO_ANSWER)
        # A server that tells no time is neither faster nor slower.
        ends = [timing.start_ms + timing.duration_ms for timing in answer.timings or ()]
        return replace(each, label=answer.label, took_ms=max(ends, default=math.nan), error="")

    async def compare(each: Recorded) -> None:
        try:
            compared.add(each, await one(each))
        finally:
            slots.release()

    try:
        async with client, asyncio.TaskGroup() as group:
            for place in tqdm(images, unit="image", mininterval=0.5, delay=1, leave=False, disable=None):
                await asyncio.sleep(begin + place.at_s - time.monotonic())
                await slots.acquire()
                group.create_task(compare(place.read()))
    except* ScriptError as errors:
        raise errors.exceptions[0] from None
    return compared


def sentences(found: dict[str, Any]) -> list[str]:
    """Describe a comparison in words."""
    share = f"{found['agreement']:.2%} ({found['low']:.2%} to {found['high']:.2%})" if found["compared"] else "none"
    times = ", ".join(f"{name} {old:.1f} recorded, {new:.1f} here" for name, (old, new) in found["ms"].items())
    return [
        f"{found['images']:,} images; {found['failed'][0]:,} had failed, {found['failed'][1]:,} failed here",
        f"labels: agree on {share} of {found['compared']:,} different images; {EQUAL:.0%} must be equal",
        f"time in the server, ms: {times}",
        f"faster on {found['faster']:,} images, slower or failed on {found['slower']:,} (p = {found['p']:.2g})",
        f"{found['verdict']}, by the {found['judged_by']}",
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
    the queue to the end of the last node. Labels are judged first: "don't" if surely fewer than 99 % of the images get
    the recorded label, "need N more" if that is not sure. Where it is, McNemar's exact test, at 5 %, judges the images
    that only one server answers, or answers in a tenth less time. An image that was sent often counts once. --json
    lists the SHA-256 of the images whose labels differ. See docs/capacity.md.
    """
    found = asyncio.run(send(url, places(folder), ca)).found()
    print("\n".join(sentences(found)))
    write_files(SimpleNamespace(json=json), None, found)


if __name__ == "__main__":
    main()
