"""The Ray cluster that serves: each of its processes descends from this one, wherever it was started."""

import ctypes
import json
import os
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from deployments.contract.names import MARK
from deployments.ray_internals import fork_client
from scripts.errors import ScriptError
from scripts.serve.folder import RAY

# Linux's number for `prctl`: orphans below this process become its children, not init's.
PR_SET_CHILD_SUBREAPER = 36
START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S, END_TIMEOUT_S = 5.0, 20.0
# Ray's own processes hold nothing once the applications have ended, and some of them take seconds to end by SIGTERM.
RAY_STOP_TIMEOUT_S = 1.0
# Serve's REST interface, and the file of the session in which it writes its address once it listens.
INTERFACE, INTERFACE_ADDRESS = "deployments.ray_internals.serve_interface", "serve_interface.address"
INTERFACE_LOG, INTERFACE_TIMEOUT_S, LOOK_EVERY_S = "serve_interface.log", 60.0, 0.02
# In a private folder: the socket of the fork server, and the program that asks it. So many may wait for it.
SOCKET, PYTHON, MOST_WAITING = "forks", "python", 64
# Without these there is no cluster.
VITAL = ("gcs_server", "raylet")


class Cluster:
    """A Ray head on this machine, from its start to its end.

    Attributes:
        address: of the cluster, for Ray.
        dashboard: its root, `http://127.0.0.1:8265`.
        session: the folder of the session, with its logs.
    """

    def __init__(self, folder: Path, whole_dashboard: bool, python: Path) -> None:
        """Start the head, on loopback or, in a cluster of several machines, on this machine's address.

        Its files are in a private folder. `python` is the program that runs its Python processes.

        Raises:
            ScriptError: it did not start.
        """
        self._interface: subprocess.Popen[bytes] | None = None
        options = ["--whole-dashboard"] if whole_dashboard else []
        printed = start_ray(folder, python, *options)
        self.address: str = printed["address"]
        self.session = Path(printed["session"])
        self._interface_address = self.session / INTERFACE_ADDRESS
        arguments = [f"--gcs-address={self.address}", f"--address-file={self._interface_address}"]
        self._interface_command = [] if printed["dashboard"] else [str(python), "-P", "-m", INTERFACE, *arguments]
        self._vital = below(VITAL)
        self.dashboard: str = printed["dashboard"] or self._wait_for_interface()

    def check(self) -> None:
        """Raise ScriptError if a process without which there is no cluster has ended."""
        if lost := self.lost():
            raise ScriptError(f"Ray's {lost} has ended; see {self.session}/logs")

    def lost(self) -> str | None:
        """Return the name of a vital process that has ended, if one has; start other processes again."""
        self._keep_interface()
        return ended(self._vital)

    def _wait_for_interface(self) -> str:
        """Wait until Serve's REST interface listens and return its root; raise ScriptError if it does not."""
        file, give_up = self._interface_address, time.monotonic() + INTERFACE_TIMEOUT_S
        while not file.exists():
            self._keep_interface()
            if time.monotonic() > give_up:
                self.end()
                raise ScriptError(f"Serve's REST interface did not start; see {self.session}/logs/{INTERFACE_LOG}")
            time.sleep(LOOK_EVERY_S)
        return f"http://{file.read_text(encoding='ascii')}"

    def _keep_interface(self) -> None:
        """Start Serve's REST interface, unless it runs; its output goes to a log."""
        if not self._interface_command or (self._interface is not None and self._interface.poll() is None):
            return
        with (self.session / "logs" / INTERFACE_LOG).open("ab") as log:
            self._interface = subprocess.Popen(  # noqa: S603
                self._interface_command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=marked(),
                cwd=fork_client.NO_CODE,
                start_new_session=True,
            )

    def end(self, are_applications_ended: bool = False) -> None:
        """End every process below this one, and what they start meanwhile."""
        end_all_below(patience_s=RAY_STOP_TIMEOUT_S if are_applications_ended else STOP_TIMEOUT_S)


def start_ray(folder: Path, python: Path, *arguments: str) -> dict[str, Any]:
    """Start Ray below this process, with its files in a private folder; return its printed report.

    `python` is the program that runs its Python processes.

    Raises:
        ScriptError: they did not start, and none of them is left.
    """
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    try:
        started = subprocess.run(  # noqa: S603
            # `-P` leaves out the working directory, where there may be packages of the same names.
            [sys.executable, "-P", "-m", "deployments.ray_internals.start", str(folder / RAY), str(python), *arguments],
            env=marked(),
            capture_output=True,
            timeout=START_TIMEOUT_S,
            # Away from the terminal, so that Ctrl-C comes to this process alone.
            start_new_session=True,
        )
    except subprocess.TimeoutExpired as err:
        end_all_below()
        raise ScriptError(f"Ray did not start within {START_TIMEOUT_S:.0f} s") from err
    if started.returncode != 0:
        end_all_below()
        raise ScriptError(f"Ray did not start: {started.stderr.decode(errors='replace')[-2000:]}")
    printed: dict[str, Any] = json.loads(started.stdout.splitlines()[-1])
    for problem in printed["warnings"]:
        print(f"warning: {problem}", file=sys.stderr, flush=True)
    return printed


@contextmanager
def fork_server(folder: Path) -> Iterator[Path]:
    """Run a fork server in a private folder; yield the program that runs scripts as Python would, forked if it can."""
    process = fork_server_started(folder / SOCKET)
    try:
        yield python(folder)
    finally:
        # One that stands still would not end by SIGTERM.
        process.kill()
        process.wait()


def python(folder: Path) -> Path:
    """Write the program that asks the fork server in a folder, and runs this Python without one."""
    program = folder / PYTHON
    command = [sys.executable, "-I", "-S", fork_client.__file__, str(folder / SOCKET), sys.executable]
    program.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n', encoding="utf-8")
    program.chmod(0o700)
    return program


def fork_server_started(path: Path) -> subprocess.Popen[bytes]:
    """Start a fork server that listens at a path. It alone has the socket: when it ends, nobody waits any more."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(MOST_WAITING)
        descriptor = listener.fileno()
        return subprocess.Popen(  # noqa: S603
            [sys.executable, "-P", "-m", "deployments.ray_internals.fork_server", str(descriptor)],
            env=marked(),
            pass_fds=[descriptor],
            start_new_session=True,
        )


def below(names: Collection[str]) -> dict[str, psutil.Process | None]:
    """Find the processes below this one by these names; None for a name that no process has."""
    processes = {_name(process): process for process in psutil.Process().children(recursive=True)}
    return {name: processes.get(name) for name in names}


def ended(processes: Mapping[str, psutil.Process | None]) -> str | None:
    """Return the name of the first process that has ended, if one has."""
    _reap()
    return next((name for name, process in processes.items() if not _runs(process)), None)


def marked() -> dict[str, str]:
    """Return the environment for child processes, by which they are found if this process is killed."""
    return {**os.environ, MARK: mark(psutil.Process())}


def mark(process: psutil.Process) -> str:
    """Make a mark that no other process has had on this machine since it started, not even by the same number.

    It has the process's start in ticks of the machine's clock, which nobody sets.
    """
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    namespace = os.readlink("/proc/self/ns/pid")
    # Behind the name in brackets, which may hold anything, the 20th field is the start.
    ticks = Path(f"/proc/{process.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19]
    return f"{process.pid}@{ticks}@{boot}@{namespace}"


def leftovers() -> Iterator[psutil.Process]:
    """Yield this user's processes whose server was killed."""
    here = mark(psutil.Process()).split("@")[2:]
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            marked = process.environ().get(MARK, "") if process.uids().real == os.getuid() else ""
            # A container's processes can be seen from outside, where they have other numbers.
            if marked and marked.split("@")[2:] == here and running(marked) is None:
                yield process


def running(marked: str) -> psutil.Process | None:
    """Find the process of a mark; None if it does not run."""
    with suppress(psutil.Error, OSError):
        process = psutil.Process(int(marked.partition("@")[0]))
        if process.status() != psutil.STATUS_ZOMBIE and mark(process) == marked:
            return process
    return None


def clear_leftovers() -> None:
    """End the processes that killed servers left behind, and print that."""
    if found := list(leftovers()):
        names = sorted({_name(process) for process in found} - {""})
        with suppress(OSError):
            print(f"ending {len(found)} processes that a killed server left: {', '.join(names)}", flush=True)
        end(found)


def end(
    processes: Iterable[psutil.Process], *ways: Callable[[psutil.Process], None], patience_s: float = STOP_TIMEOUT_S
) -> None:
    """End processes by SIGTERM, and by SIGKILL after `patience_s` seconds; or by other ways, one after the other."""
    running = list(processes)
    for way in ways or (psutil.Process.terminate, psutil.Process.kill):
        for process in running:
            with suppress(psutil.Error):
                way(process)
        _, running = psutil.wait_procs(running, patience_s)


def end_all_below(*ways: Callable[[psutil.Process], None], patience_s: float = STOP_TIMEOUT_S) -> None:
    """End every process below this one, and what they start meanwhile; by the ways of `end`."""
    give_up, empty = time.monotonic() + END_TIMEOUT_S, 0
    # A process whose parent ends while the list is made is in it the next time.
    while empty < 2 and time.monotonic() < give_up:
        below = psutil.Process().children(recursive=True)
        empty = 0 if below else empty + 1
        end(below, *ways, patience_s=patience_s)
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
    """Take the exit status of children that have ended."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            time.sleep(0)


@contextmanager
def guarded() -> Iterator[None]:
    """End what this process starts meanwhile, even if it is killed."""
    # The pipe ends with this process, which alone can write to it. A shell waits for that in little memory.
    guard = ["/bin/sh", "-c", 'read -r line; exec "$@"', "sh", sys.executable, "-P", "-m", "scripts.serve.cluster"]
    guardian = subprocess.Popen(guard, stdin=subprocess.PIPE, start_new_session=True)  # noqa: S603
    try:
        yield
    finally:
        guardian.kill()
        guardian.wait()


if __name__ == "__main__":
    while any(leftovers()):
        clear_leftovers()
