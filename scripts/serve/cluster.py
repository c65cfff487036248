"""The Ray cluster that serves: every process of it is below this one, wherever it was started from."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress

import psutil

from scripts.errors import ScriptError

# Linux's number for `prctl`: orphans below this process become its children, not init's.
PR_SET_CHILD_SUBREAPER = 36
# In the environment of everything that is started: who started it.
MARK = "ENSEMBLE_SERVED_BY"
START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 5.0
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
        command = [sys.executable, "-m", "scripts.serve.head", *(["--whole-dashboard"] if whole_dashboard else [])]
        environment = {**os.environ, MARK: mark(psutil.Process())}
        try:
            started = subprocess.run(  # noqa: S603
                command, env=environment, capture_output=True, timeout=START_TIMEOUT_S
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
        """End every process below this one."""
        end(psutil.Process().children(recursive=True))
        _reap()


def mark(process: psutil.Process) -> str:
    """What tells a process from another that once had, or will have, its number."""
    return f"{process.pid}@{process.create_time()}"


def leftovers() -> Iterator[psutil.Process]:
    """This user's processes that were started by a server that is no more: it was killed."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.uids().real == os.getuid() and (marked := process.environ().get(MARK)):
                pid = int(marked.partition("@")[0])
                if not psutil.pid_exists(pid) or mark(psutil.Process(pid)) != marked:
                    yield process


def clear_leftovers() -> None:
    """End what earlier, killed servers left behind, and say so."""
    if found := list(leftovers()):
        names = sorted({process.name() for process in found})
        print(f"ending {len(found)} processes that a killed server left: {', '.join(names)}", flush=True)
        end(found)


def end(processes: Iterable[psutil.Process]) -> None:
    """Ask processes to end, and end those that don't."""
    running = list(processes)
    for signal in (psutil.Process.terminate, psutil.Process.kill):
        for process in running:
            with suppress(psutil.Error):
                signal(process)
        _, running = psutil.wait_procs(running, STOP_TIMEOUT_S)


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
