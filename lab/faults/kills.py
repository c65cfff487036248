"""Kills a process of a server at some moment of its start, of its load or of its stop, and then starts a server again.

    ensemble faults kills                          # 40 kills, three quarters of an hour
    ensemble faults kills --seed 7 --first 4 --kills 1    # one that failed, alone

Which process is killed (SIGKILL) and when follows from the seed and the kill's number. The server either
heals, or ends with a reason; either way it must end within 30 s of Ctrl-C. The next server must end the processes that
remain, answer, and leave nothing behind. Another Ray of this user runs all the while, and must go on. The exit
status is 1 if anything was not so.
"""

from __future__ import annotations

import argparse
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import psutil
import yaml
from tqdm import tqdm

from ensemble_serving.transports import NoResponse, Request, is_ready, once
from lab.benchmark.systems import GRPC_PORT, HTTP_PORT
from lab.benchmark.workloads import ROOT, workload
from lab.faults.campaign import Campaign
from lab.flags import at_least_zero
from lab.rows import Part, Row, Rows
from scripts.errors import ScriptError, positive
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


class Served:
    """A server in a process of its own."""

    def __init__(self, config: Path, log: Path) -> None:
        """Start the server."""
        self.log = log
        with log.open("wb") as stream:
            command = [sys.executable, "-P", "-m", "scripts.serve", str(config)]
            self._process = subprocess.Popen(command, stdout=stream, stderr=subprocess.STDOUT, cwd=ROOT)  # noqa: S603

    def kill(self, part: str) -> bool:
        """Kill its process of a part; whether it was there."""
        with suppress(psutil.Error):
            own = psutil.Process(self._process.pid)
            for process in (own, *own.children(recursive=True)):
                with suppress(psutil.Error):
                    if part in " ".join(process.cmdline()[:4]):
                        process.kill()
                        return True
        return False

    def until(self, check: Callable[[], bool], seconds: float) -> bool:
        """Wait until something holds, or it has ended, or the time is over; whether it holds."""
        give_up = time.monotonic() + seconds
        while not (held := check()) and self.runs() and time.monotonic() < give_up:
            time.sleep(0.1)
        return held

    def runs(self) -> bool:
        """Tell whether the server's process has not ended."""
        return self._process.poll() is None

    def is_ready(self) -> bool:
        """Tell whether the server has said that it is ready, and its service says so too."""
        return "Ready." in self.told() and is_ready(f"http://127.0.0.1:{HTTP_PORT}")

    def interrupt(self) -> None:
        """Interrupt the server as Ctrl-C does."""
        if self.runs():
            self._process.send_signal(signal.SIGINT)

    def ends(self) -> bool:
        """Tell whether the server ends in time; kill it if not."""
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            return False
        return True

    def told(self) -> str:
        """Read what the server printed so far."""
        return self.log.read_text(encoding="utf-8", errors="replace")


def fate(number: int, seed: int, config: Path, image: bytes) -> Row:
    """Kill once: the part and the moment that the number chose, and what became of it.

    The outcome is `healed`, `ended`, or `late` if the process was not there, yet or any more. `cleared` counts the
    processes that the next server ended, and `failure` describes the broken rule; empty if none was broken.
    """
    chance = random.Random(f"{seed} {number}")
    part, moment = chance.choice(list(PARTS)), chance.choice(MOMENTS)
    found: Row = {"killed": part, "moment": moment, "outcome": "late", "cleared": 0, "failure": ""}
    server = Served(config, config.with_name("killed.log"))
    if moment == "start":
        time.sleep(chance.uniform(0, START_S))
    else:
        if not server.until(server.is_ready, READY_S):
            found["failure"] = f"did not start: {server.told()[-500:]}"
        if moment == "stop":
            server.interrupt()
            time.sleep(chance.uniform(0, STOP_S))
    if server.kill(PARTS[part]):
        found["outcome"] = "ended"
        if moment != "stop":
            # What is left may say for a moment that all is well.
            time.sleep(NOTICED_S)
            found["outcome"] = "healed" if server.until(server.is_ready, READY_S) else "ended"
            if found["outcome"] == "ended" and server.runs():
                found["failure"] = f"neither ready nor ended after {READY_S:.0f} s: {server.told()[-500:]}"
    server.interrupt()
    if not server.ends():
        found["failure"] = f"did not end {END_S:.0f} s after Ctrl-C: {server.told()[-500:]}"
    if "Traceback" in server.told():
        found["failure"] = f"printed a traceback: {server.told()[-500:]}"
    _again(config, image, found)
    return found


def _again(config: Path, image: bytes, found: Row) -> None:
    """Start a server on what the one before left, ask it, and stop it."""
    left = _names(leftovers())
    found["cleared"] = len(left)
    server = Served(config, config.with_name("again.log"))
    try:
        if not server.until(server.is_ready, READY_S):
            found["failure"] = f"the next server did not start: {server.told()[-500:]}"
        elif found["cleared"] and "that a killed server left" not in server.told():
            found["failure"] = f"the next server did not say that it cleared away {', '.join(left)}"
        elif not (response := once(f"http://127.0.0.1:{HTTP_PORT}", Request("/classify", image))).ok:
            found["failure"] = f"the next server answered {response.status}"
    except NoResponse as err:
        found["failure"] = f"the next server did not answer: {err}"
    finally:
        server.interrupt()
        if not server.ends():
            found["failure"] = f"the next server did not end: {server.told()[-500:]}"
    if left := _names(leftovers()):
        found["failure"] = f"the next server left {', '.join(left)}"


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


def measure(kills: range, seed: int) -> Iterator[Row]:
    """Kill once for each number, beside another Ray.

    Raises:
        ScriptError: the other Ray did not start, or was ended.
    """
    load = workload("embedded", "int8")
    with tempfile.TemporaryDirectory(prefix="es-") as temporary, bystander(Path(temporary)) as other:
        config = Path(temporary) / "config.yaml"
        config.write_text(yaml.safe_dump(load.config("colocated", HTTP_PORT, GRPC_PORT)), encoding="utf-8")
        for number in tqdm(kills, unit="kill"):
            yield {"number": number, **fate(number, seed, config, load.images[0].read_bytes())}
        if not other.is_running():
            raise ScriptError("another Ray of this user was ended")


def shown(rows: Rows) -> Rows:
    """Count the kills of each part at each moment by their outcome."""
    groups: dict[tuple[str, str], Rows] = defaultdict(list)
    for row in rows:
        if "error" not in row:
            groups[row["killed"], row["moment"]].append(row)
    return [
        {
            "killed": part,
            "moment": moment,
            "kills": len(group),
            **{outcome: sum(row["outcome"] == outcome for row in group) for outcome in ("healed", "ended", "late")},
            "cleared": sum(row["cleared"] for row in group),
            "failed": sum(bool(row["failure"]) for row in group),
        }
        for (part, moment), group in sorted(groups.items())
    ] + [row for row in rows if "error" in row]


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of which kills are done."""
    parser.add_argument("--kills", type=positive, default=40, help="how many; default: %(default)s")
    parser.add_argument("--seed", type=int, default=1, help="of what is killed when; default: %(default)s")
    parser.add_argument("--first", type=at_least_zero, default=0, metavar="NUMBER", help="of the first kill")


def parts(args: argparse.Namespace) -> list[Part]:
    """Make all kills one part, beside which the other Ray runs."""
    kills = range(args.first, args.first + args.kills)
    return [Part("all", partial(measure, kills, args.seed), {"campaign": "kills"})]


KILLS = Campaign(
    name="kills",
    help=__doc__,
    add_flags=add_flags,
    parts=parts,
    columns="killed {killed} | moment {moment} | kills {kills:d} | healed {healed:d} | ended by itself {ended:d} | "
    "too late {late:d} | cleared away {cleared:d} | failed {failed:d}",
    failed=lambda row: bool(row["failure"]),
    shown=shown,
    note=lambda row: (
        f"kill {row['number']}, {row['killed']} at its {row['moment']}: {row['failure']}" if row["failure"] else ""
    ),
)
