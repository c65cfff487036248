"""The Ray cluster that serves: every process of it is below this one, wherever it was started from."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil

from scripts.errors import ScriptError

# Linux's number for `prctl`: orphans below this process become its children, not init's.
PR_SET_CHILD_SUBREAPER = 36
# In the environment of everything that is started: who started it.
MARK = "ENSEMBLE_SERVED_BY"
START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S, END_TIMEOUT_S = 5.0, 20.0
# Without these there is no cluster any more.
VITAL = ("gcs_server", "raylet")


class Cluster:
    """A Ray head on this machine, from its start to its end."""

    def __init__(self, whole_dashboard: bool) -> None:
        """Start it, on loopback.

        Args:
            whole_dashboard: whether Ray's dashboard has all its pages.

        Raises:
            ScriptError: it did not start.
        """
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
        command = [
            sys.executable,
            "-m",
            "graph.ray_internals.head",
            *(["--whole-dashboard"] if whole_dashboard else []),
        ]
        environment = {**os.environ, MARK: mark(psutil.Process())}
        try:
            started = subprocess.run(  # noqa: S603
                # Away from the terminal, whose Ctrl-C is for this process to heed.
                command,
                env=environment,
                capture_output=True,
                timeout=START_TIMEOUT_S,
                start_new_session=True,
            )
        except subprocess.TimeoutExpired as err:
            self.end()
            raise ScriptError(f"Ray did not start within {START_TIMEOUT_S:.0f} s") from err
        if started.returncode != 0:
            self.end()
            raise ScriptError(f"Ray did not start: {started.stderr.decode(errors='replace')[-2000:]}")
        told = json.loads(started.stdout.splitlines()[-1])
        self.address: str = told["address"]
        self.dashboard: str = told["dashboard"]
        self.session: str = told["session"]
        processes = psutil.Process().children(recursive=True)
        self._vital = {name: process for process in processes if (name := _name(process)) in VITAL}

    def lost(self) -> str | None:
        """The name of a process without which there is no cluster, if it has ended."""
        _reap()
        return next((name for name in VITAL if not _runs(self._vital.get(name))), None)

    def end(self) -> None:
        """End every process below this one, and what they start meanwhile."""
        _end_all_below()


def end_at_once() -> None:
    """Kill every process below this one, and what they start meanwhile."""
    _end_all_below(psutil.Process.kill)


def mark(process: psutil.Process) -> str:
    """What tells a process from another that once had, or will have, its number: on this start of this machine.

    Its age in ticks of the machine's, not by the clock, which may be set meanwhile.
    """
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    namespace = os.readlink("/proc/self/ns/pid")
    # Behind the name in brackets, which may hold anything, the 20th field is the start.
    ticks = Path(f"/proc/{process.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19]
    return f"{process.pid}@{ticks}@{boot}@{namespace}"


def leftovers() -> Iterator[psutil.Process]:
    """This user's processes that were started by a server that is no more: it was killed."""
    here = mark(psutil.Process()).split("@")[2:]
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            marked = process.environ().get(MARK, "") if process.uids().real == os.getuid() else ""
            # A container's processes are seen from outside, but their numbers are others there.
            if marked and marked.split("@")[2:] == here and not _is_there(marked):
                yield process


def _is_there(marked: str) -> bool:
    try:
        return mark(psutil.Process(int(marked.partition("@")[0]))) == marked
    except (psutil.Error, OSError):
        return False


def clear_leftovers() -> None:
    """End what earlier, killed servers left behind, and say so."""
    if found := list(leftovers()):
        names = sorted({process.name() for process in found})
        print(f"ending {len(found)} processes that a killed server left: {', '.join(names)}", flush=True)
        end(found)


def end(processes: Iterable[psutil.Process], *ways: Callable[[psutil.Process], None]) -> None:
    """Ask processes to end, and end those that don't; or in other ways, one after the other."""
    running = list(processes)
    for way in ways or (psutil.Process.terminate, psutil.Process.kill):
        for process in running:
            with suppress(psutil.Error):
                way(process)
        _, running = psutil.wait_procs(running, STOP_TIMEOUT_S)


def _end_all_below(*ways: Callable[[psutil.Process], None]) -> None:
    give_up, empty = time.monotonic() + END_TIMEOUT_S, 0
    # A process whose parent ends while the list is made is below nobody in it: it is, when one looks again.
    while empty < 2 and time.monotonic() < give_up:
        below = psutil.Process().children(recursive=True)
        empty = 0 if below else empty + 1
        end(below, *ways)
        _reap()


def _name(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        return process.name()
    return ""


def _runs(process: psutil.Process | None) -> bool:
    with suppress(psutil.Error):
        return process is not None and process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def _reap() -> None:
    """Let go of children that have ended."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            time.sleep(0)
