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
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import psutil
import yaml
from tqdm import tqdm

from ensemble_models.options import COUNT, POSITIVE
from ensemble_serving.transports import NoResponse, Request, is_ready, once
from lab.benchmark.systems import GRPC_PORT, HTTP_PORT
from lab.benchmark.workloads import ROOT, workload
from lab.faults.campaign import Campaign
from lab.rows import Row, Rows, measured
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
# Within these a start and a stop happen, seconds.
START_S, STOP_S = 12.0, 3.0
READY_S, END_S, NOTICED_S = 180.0, 30.0, 3.0
BYSTANDER = "import ray, sys; ray.init(num_cpus=1, include_dashboard=False); print('up', flush=True); sys.stdin.read()"


class Broken(Exception):
    """A rule that a server broke."""


class Served:
    """A server in a process of its own, and its log."""

    def __init__(self, log: Path, command: Sequence[str]) -> None:
        """Start the server."""
        self.log = log
        with log.open("wb") as stream:
            self.process = psutil.Popen(command, stdout=stream, stderr=subprocess.STDOUT, cwd=ROOT)

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

    def is_ready(self) -> bool:
        """Tell whether the server has printed that it is ready, and its service says so too."""
        return "Ready." in self.told() and is_ready(f"http://127.0.0.1:{HTTP_PORT}")

    def stop(self, name: str) -> None:
        """Interrupt the server as Ctrl-C does; kill it and raise Broken if it does not end in time."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(END_S)
        except psutil.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise Broken(f"{name} did not end {END_S:.0f} s after Ctrl-C: {self.told()[-500:]}") from None

    def told(self) -> str:
        """Read the server's log."""
        return self.log.read_text(encoding="utf-8", errors="replace")


def fate(number: int, seed: int, config: Path, image: bytes) -> Row:
    """Kill once: the number chooses the part and the moment.

    The outcome is `healed`, `ended`, or `late` if there was no such process. `cleared` counts the processes that the
    next server ended, and `failure` describes the first broken rule; empty for none.
    """
    chance = random.Random(f"{seed} {number}")
    found: Row = {"killed": chance.choice(list(PARTS)), "moment": chance.choice(MOMENTS), "outcome": "late"}
    found |= {"cleared": 0, "failure": ""}
    command = (sys.executable, "-P", "-m", "scripts.serve", str(config))
    for attempt in (partial(_killed, chance), partial(_next, image)):
        try:
            attempt(config.with_suffix(".log"), command, found)
        except (Broken, NoResponse) as err:
            found["failure"] = found["failure"] or str(err)
    return found


def _killed(chance: random.Random, log: Path, command: Sequence[str], found: Row) -> None:
    """Kill a process of a server, and stop the server."""
    server = Served(log, command)
    try:
        if found["moment"] == "start":
            time.sleep(chance.uniform(0, START_S))
        elif not server.until(server.is_ready, READY_S):
            raise Broken(f"did not start: {server.told()[-500:]}")
        if found["moment"] == "stop":
            server.process.send_signal(signal.SIGINT)
            time.sleep(chance.uniform(0, STOP_S))
        if server.kill(PARTS[found["killed"]]):
            found["outcome"] = "ended"
            # The processes that remain may say for a moment that all is well.
            time.sleep(NOTICED_S)
            if found["moment"] != "stop" and server.until(server.is_ready, READY_S):
                found["outcome"] = "healed"
            elif found["moment"] != "stop" and server.process.poll() is None:
                raise Broken(f"neither ready nor ended after {READY_S:.0f} s: {server.told()[-500:]}")
    finally:
        server.stop("the server")
    if "Traceback" in server.told():
        raise Broken(f"printed a traceback: {server.told()[-500:]}")


def _next(image: bytes, log: Path, command: Sequence[str], found: Row) -> None:
    """Start another server, which clears away the processes that the first one left, ask it, and stop it."""
    left = _names(leftovers())
    found["cleared"] = len(left)
    server = Served(log, command)
    try:
        if not server.until(server.is_ready, READY_S):
            raise Broken(f"the next server did not start: {server.told()[-500:]}")
        if left and "that a killed server left" not in server.told():
            raise Broken(f"the next server did not say that it cleared away {', '.join(left)}")
        if not (response := once(f"http://127.0.0.1:{HTTP_PORT}", Request("/classify", image))).ok:
            raise Broken(f"the next server answered {response.status}")
    finally:
        server.stop("the next server")
    if left := _names(leftovers()):
        raise Broken(f"the next server left {', '.join(left)}")


def _names(processes: Iterable[psutil.Process]) -> list[str]:
    """Return the names of the processes that have not ended meanwhile."""
    names = []
    for process in processes:
        with suppress(psutil.Error):
            names.append(process.name())
    return names


@contextmanager
def bystander(folder: Path) -> Iterator[psutil.Process]:
    """Start another Ray of this user, which nobody marked as ours, and yield its raylet."""
    process = subprocess.Popen(  # noqa: S603
        [sys.executable, "-c", BYSTANDER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={"PATH": "/usr/bin:/bin", "HOME": str(Path.home()), "RAY_TMPDIR": str(folder)},
    )
    try:
        assert process.stdout is not None
        if process.stdout.readline().strip() != b"up":
            raise ScriptError("another Ray did not start beside the server")
        yield next(p for p in psutil.Process(process.pid).children(recursive=True) if p.name() == "raylet")
    finally:
        process.communicate()


def measure(kills: int, seed: int, first: int) -> Iterator[Row]:
    """Kill once for each number, beside another Ray.

    Raises ScriptError if the other Ray did not start, or was ended.
    """
    load = workload("embedded", "int8")
    with tempfile.TemporaryDirectory(prefix="es-") as temporary, bystander(Path(temporary)) as other:
        config = Path(temporary) / "config.yaml"
        config.write_text(yaml.safe_dump(load.config("colocated", HTTP_PORT, GRPC_PORT)), encoding="utf-8")
        for number in tqdm(range(first, first + kills), unit="kill"):
            yield {"number": number, **fate(number, seed, config, load.images[0].read_bytes())}
        if not other.is_running():
            raise ScriptError("another Ray of this user was ended")


def shown(rows: Rows) -> Rows:
    """Count the kills of each part at each moment by their outcome."""
    counts: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for row in measured(rows):
        counts[row["killed"], row["moment"]] += Counter(
            {"kills": 1, row["outcome"]: 1, "cleared": row["cleared"], "failed": bool(row["failure"])}
        )
    zeros = dict.fromkeys(("healed", "ended", "late", "cleared", "failed"), 0)
    lines = [{"killed": part, "moment": at, **zeros, **count} for (part, at), count in sorted(counts.items())]
    return lines + [row for row in rows if "error" in row]


KILLS = Campaign(
    name="kills",
    help=__doc__,
    measure=measure,
    flags={
        "--kills": {"type": POSITIVE, "default": 40, "show_default": True, "help": "Number of kills."},
        "--seed": {"type": int, "default": 1, "help": "Decides which process is killed when; default: 1."},
        "--first": {"type": COUNT, "default": 0, "metavar": "NUMBER", "help": "Of the first kill."},
    },
    columns="killed {killed} | moment {moment} | kills {kills:d} | healed {healed:d} | ended by itself {ended:d} | "
    "too late {late:d} | cleared away {cleared:d} | failed {failed:d}",
    failed=lambda row: bool(row["failure"]),
    shown=shown,
    note=lambda row: (
        f"kill {row['number']}, {row['killed']} at its {row['moment']}: {row['failure']}" if row["failure"] else ""
    ),
)
