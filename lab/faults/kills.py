"""Kills a process of a server at some moment of its start, of its load or of its stop, and then starts a server again.

    ensemble faults kills                          # 40 kills, three quarters of an hour
    ensemble faults kills --seed 7 --first 4 --kills 1    # one that failed, alone

Which process is killed (SIGKILL) and when follows from the seed and the kill's number. The server either
heals, or ends with a reason; either way it must end within 30 s of Ctrl-C. The next server must end the processes that
remain, answer, and leave nothing behind. Another Ray of this user runs all the while, and must go on. The exit
status is 1 if anything was not so.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path

import click
import psutil
import yaml
from tqdm import tqdm

from ensemble_capacity.serving import started
from ensemble_models.options import COUNT, POSITIVE, Command, file_options, option
from ensemble_serving.transports import NoResponse, Request, once
from lab.benchmark.systems import GRPC_PORT, HTTP_PORT
from lab.benchmark.workloads import ROOT, workload
from lab.faults.campaign import report
from lab.rows import Part, Row
from scripts.errors import ScriptError
from scripts.serve.cluster import leftovers

# By what is in its command line, the most particular first: whose process it is.
PARTS = {
    "the process of `make serve`": "scripts.serve",
    "GCS": "gcs_server",
    "the raylet": "raylet/raylet",
    "Serve's interface": "ray::ServeInterface",
    "the fork server": "deployments.ray_internals.fork_server",
    "Serve's controller": "ray::ServeController",
    "HAProxy": "bin/haproxy",
    "the replica": "ray::ServeReplica",
}
MOMENTS = ("start", "load", "stop")
URL = f"http://127.0.0.1:{HTTP_PORT}"
# Within these a start and a stop happen, seconds.
START_S, STOP_S = 12.0, 3.0
READY_S, END_S, NOTICED_S = 180.0, 30.0, 3.0
COLUMNS = (
    "kill {number:d} | killed {killed} | moment {moment} | outcome {outcome} | cleared away {cleared:d} | "
    "broken rule {failure}"
)
BYSTANDER = (
    "import ray, signal; ray.init(num_cpus=1, include_dashboard=False); print('It runs.', flush=True); signal.pause()"
)


class Broken(Exception):
    """A rule that a server broke."""


class Served(AbstractContextManager["Served"]):
    """A server in a process of its own, with a name for messages, and its log; the end of a block stops it."""

    def __init__(self, name: str, log: Path, command: Sequence[str]) -> None:
        """Start the server."""
        self.name, self.log = name, log
        with log.open("wb") as stream:
            self.process = psutil.Popen(command, stdout=stream, stderr=subprocess.STDOUT, cwd=ROOT)

    def __exit__(self, *_: object) -> None:
        """Interrupt the server as Ctrl-C does; kill it and raise Broken if it does not end in time."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(END_S)
        except psutil.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            self.require(False, f"did not end {END_S:.0f} s after Ctrl-C")

    def require(self, holds: bool, otherwise: str) -> None:
        """Raise Broken with the end of the log unless something holds."""
        if not holds:
            raise Broken(f"{self.name} {otherwise}: {self.told()[-500:]}")

    def told(self) -> str:
        """Read the server's log."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def kill(self, part: str) -> bool:
        """Kill the server's process of a part; return whether there was one."""
        with suppress(psutil.Error):
            for process in (self.process, *self.process.children(recursive=True)):
                with suppress(psutil.Error):
                    if part in " ".join(process.cmdline()[:4]):
                        process.kill()
                        return True
        return False

    def until(self, check: Callable[[], bool], seconds: float) -> bool:
        """Wait until something holds, the server has ended, or the time is over; return whether it holds."""
        give_up = time.monotonic() + seconds
        while not (held := check()) and self.process.poll() is None and time.monotonic() < give_up:
            time.sleep(0.1)
        return held

    def becomes_ready(self) -> bool:
        """Wait until the server has printed that it is ready, and its service says so too; return whether it is."""
        return self.until(lambda: "Ready." in self.told() and is_ready(), READY_S)


def is_ready() -> bool:
    """Tell whether the server reports by the Open Inference Protocol that it is ready."""
    with suppress(NoResponse):
        return once(URL, Request("/v2/health/ready", method="GET"), timeout_s=5.0).ok
    return False


def fate(number: int, seed: int, config: Path, image: bytes) -> Row:
    """Kill once: the number chooses the part and the moment.

    The outcome is `healed`, `ended`, or `late` if there was no such process. `cleared` counts the processes that the
    next server ended, and `failure` describes the first broken rule; empty for none.
    """
    chance = random.Random(f"{seed} {number}")
    found: Row = {"number": number, "killed": chance.choice(list(PARTS)), "moment": chance.choice(MOMENTS)}
    found |= {"outcome": "late", "cleared": 0, "failure": ""}

    def start(name: str) -> Served:
        return Served(name, config.with_suffix(".log"), (sys.executable, "-P", "-m", "scripts.serve", str(config)))

    for attempt in (partial(_kill, chance), partial(_serve_again, image)):
        try:
            attempt(start, found)
        except (Broken, NoResponse) as err:
            found["failure"] = found["failure"] or str(err)
    return found


def _kill(chance: random.Random, start: Callable[[str], Served], found: Row) -> None:
    """Kill a process of a server, and stop the server."""
    with start("the server") as server:
        if found["moment"] == "start":
            time.sleep(chance.uniform(0, START_S))
        else:
            server.require(server.becomes_ready(), "did not start")
        if found["moment"] == "stop":
            server.process.send_signal(signal.SIGINT)
            time.sleep(chance.uniform(0, STOP_S))
        if server.kill(PARTS[found["killed"]]):
            found["outcome"] = "ended"
            # The processes that remain may say for a moment that all is well.
            time.sleep(NOTICED_S)
            if found["moment"] != "stop" and server.becomes_ready():
                found["outcome"] = "healed"
            elif found["moment"] != "stop":
                server.require(server.process.poll() is not None, f"neither is ready nor has ended in {READY_S:.0f} s")
    server.require("Traceback" not in server.told(), "printed a traceback")


def _serve_again(image: bytes, start: Callable[[str], Served], found: Row) -> None:
    """Start another server, which clears away the processes that the first one left, ask it, and stop it."""
    left = [str(each) for each in leftovers()]
    found["cleared"] = len(left)
    with start("the next server") as server:
        server.require(server.becomes_ready(), "did not start")
        said = not left or "that a killed server left" in server.told()
        server.require(said, f"did not say that it cleared away {', '.join(left)}")
        response = once(URL, Request("/classify", image))
        server.require(response.ok, f"answered {response.status}")
    left = [str(each) for each in leftovers()]
    server.require(not left, f"left {', '.join(left)}")


@contextmanager
def bystander(folder: Path) -> Iterator[psutil.Process]:
    """Start another Ray of this user, which nobody marked as ours, and yield its raylet."""
    env = {"PATH": "/usr/bin:/bin", "HOME": str(Path.home()), "RAY_TMPDIR": str(folder)}
    command = [sys.executable, "-c", BYSTANDER]
    with started(command, folder / "other.log", lambda log: b"It runs." in log.read_bytes(), READY_S, env=env) as other:
        yield next(p for p in psutil.Process(other.pid).children(recursive=True) if p.name() == "raylet")


def measure(kills: int, seed: int, first: int) -> Iterator[Row]:
    """Kill once for each number, beside another Ray.

    Raises ScriptError if the other Ray did not start, or was ended.
    """
    load = workload("embedded", "int8")
    with tempfile.TemporaryDirectory(prefix="es-") as temporary, bystander(Path(temporary)) as other:
        config = Path(temporary) / "config.yaml"
        config.write_text(yaml.safe_dump(load.config("colocated", HTTP_PORT, GRPC_PORT)), encoding="utf-8")
        for number in tqdm(range(first, first + kills), unit="kill"):
            yield fate(number, seed, config, load.images[0].read_bytes())
        if not other.is_running():
            raise ScriptError("another Ray of this user was ended")


@click.command("faults kills", cls=Command, help=__doc__)
@option("--kills", type=POSITIVE, default=40, help="Number of kills.")
@option("--seed", type=int, default=1, help="Decides which process is killed when.")
@option("--first", type=COUNT, default=0, metavar="NUMBER", help="Of the first kill.")
@file_options("json", "markdown")
def main(kills: int, seed: int, first: int, **files: Path | None) -> None:
    """Kill processes of servers."""
    every = Part("kills", lambda: measure(kills, seed, first), {"campaign": "kills"})
    report([every], COLUMNS, files, failed=lambda row: bool(row["failure"]))
