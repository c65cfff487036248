"""Hostile input to a server of its own: the corpus, then originals side by side; with what became of its processes."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import psutil

from deployments.repository.repository import DEFAULT_ROOT
from ensemble_serving.transports import is_ready
from lab.benchmark.systems import GRPC_PORT, HTTP_PORT, OURS, Running, running
from lab.benchmark.workloads import CIFAR_SIZE, Placement, Workload
from lab.faults.hostile.corpus import made
from lab.faults.hostile.inputs import Input, classify
from lab.faults.hostile.pictures import largest
from lab.faults.hostile.sending import Sender
from lab.faults.hostile.siege import Siege, Verdict, WellMeaning, besiege, families, told
from scripts.errors import ScriptError
from scripts.shipped import shipped

HOST = "127.0.0.1"
URL = f"http://{HOST}:{HTTP_PORT}"
SIDE_BY_SIDE = 64
LOOK_EVERY_S = 1.0
WELL_TIMEOUT_S = 60.0
# Processes whose end is a fault; what decodes is replaced when an image has ended it.
VITAL = ("ray::", "haproxy", "raylet", "gcs_server")
HEADINGS = ("what is sent", "inputs", "answered", "failures", "slowest, s", "memory at most, MB")


@dataclass
class Part:
    """A part of the campaign: what came of it, and the memory that the server had meanwhile, megabytes."""

    siege: Siege
    peak_mb: float


@dataclass
class Report:
    """What came of the campaign.

    Attributes:
        parts: by name: the corpus, and the originals of each format.
        before_mb: the server's memory before, megabytes.
        after_mb: and a while after.
        lost: its processes that are gone.
    """

    parts: dict[str, Part] = field(default_factory=dict)
    before_mb: float = 0.0
    after_mb: float = 0.0
    lost: list[str] = field(default_factory=list)

    @property
    def failures(self) -> list[str]:
        """Everything that went wrong."""
        found = [f"{name}: {failure}" for name, part in self.parts.items() for failure in part.siege.failures]
        return found + [f"a process ended: {name}" for name in self.lost]


@contextmanager
def memory_of(server: Running) -> Iterator[list[float]]:
    """What memory a server has from here to the end of the block, megabytes, second by second."""
    seen, over = [0.0], threading.Event()

    def look() -> None:
        while not over.wait(LOOK_EVERY_S):
            seen.append(server.resident_mb())

    watching = threading.Thread(target=look, name="memory", daemon=True)
    watching.start()
    try:
        yield seen
    finally:
        over.set()
        watching.join()


def vital(server: Running) -> dict[int, str]:
    """The server's processes that must not end, by their id."""
    found = {}
    for process in server.processes():
        with suppress(psutil.Error):
            name = process.name()
            if name.startswith(VITAL) and "IDLE" not in name:
                found[process.pid] = name
    return found


def originals(name: str) -> list[tuple[int, Input]]:
    """The largest picture of a format, as often as it is sent at once."""
    image = Input(f"originals: {name}", classify(largest(name)))
    return [(number, image) for number in range(SIDE_BY_SIDE)]


def campaign(
    seed: int, numbers: Sequence[int], formats: Sequence[str], placement: Placement, done: Callable[[], object]
) -> Report:
    """Send the corpus' inputs of these numbers, then originals of these formats side by side.

    Raises:
        ScriptError: the server did not start, or was not well again after it.
    """
    # Before the server is watched: making them takes memory and time as well.
    sent_originals = {name: originals(name) for name in formats}
    photograph = shipped("tests/cat.jpg")
    load = Workload("embedded", DEFAULT_ROOT, 2, CIFAR_SIZE, (photograph,), None)
    with running(OURS[placement], load, one_of_each) as server:
        report, before = Report(before_mb=server.resident_mb()), vital(server)
        parts = {"corpus": ((number, made(seed, number)) for number in numbers), **sent_originals}
        for name, inputs in parts.items():
            at_once = SIDE_BY_SIDE if name in sent_originals else 16
            with memory_of(server) as memory_mb:
                well_meaning = WellMeaning(URL, photograph.read_bytes())
                sender = Sender(HOST, HTTP_PORT, GRPC_PORT)
                siege = asyncio.run(besiege(sender, inputs, well_meaning, at_once=at_once, done=done))
            report.parts[name] = Part(siege, max(memory_mb))
        _until_well()
        after = vital(server)
        report.lost = [name for pid, name in before.items() if pid not in after]
        report.after_mb = server.resident_mb()
    return report


def one_of_each(config: dict[str, Any]) -> None:
    """A replica that comes or goes by itself would look like one that died."""
    for options in config["applications"][0]["deployments"]:
        options.pop("autoscaling_config", None)
        options["num_replicas"] = 1


def _until_well() -> None:
    give_up = time.monotonic() + WELL_TIMEOUT_S
    while time.monotonic() < give_up:
        if is_ready(URL):
            return
        time.sleep(0.2)
    raise ScriptError(f"the server was not well {WELL_TIMEOUT_S:.0f} s after the last hostile input")


def rows(report: Report) -> list[list[str]]:
    """The table's lines: a family of the corpus each, then the originals of a format each."""
    lines = []
    for part in report.parts.values():
        for family, verdict in (families(part.siege) if len(families(part.siege)) > 1 else part.siege.verdicts).items():
            lines.append(_row(family, verdict, part.peak_mb))
    well = [part.siege for part in report.parts.values()]
    asked, wrong = sum(each.well_meant for each in well), sum(len(each.wrong) for each in well)
    slowest = max(each.slowest_well_meant_s for each in well)
    return [*lines, ["a photograph, in between", f"{asked:,}", "", f"{wrong:,}", f"{slowest:.1f}", ""]]


def _row(what: str, verdict: Verdict, peak_mb: float) -> list[str]:
    number = f"{verdict.statuses.total():,}"
    return [
        what,
        number,
        told(verdict.statuses),
        f"{len(verdict.failures):,}",
        f"{verdict.slowest_s:.1f}",
        f"{peak_mb:,.0f}",
    ]
