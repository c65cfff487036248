"""Reads what a load uses of this machine: CPU time and memory of the server's processes."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field

import psutil

from deployments.contract.names import MARK
from ensemble_serving.url import address, parsed

LONGEST_NAME = 48


@dataclass(frozen=True)
class Figures:
    """The use of a server between two moments; empty where it is not known.

    Attributes:
        seconds: between them.
        cpu_s: of the server's processes by name, seconds, the most first.
        memory_mb: likewise, at the end, megabytes.
    """

    seconds: float = 0.0
    cpu_s: dict[str, float] = field(default_factory=dict)
    memory_mb: dict[str, float] = field(default_factory=dict)


class Usage:
    """Counts what a server on this machine uses."""

    def __init__(self, url: str) -> None:
        """Find the server at a URL, and begin."""
        self._processes = Processes.of_port(*address(parsed(url)))
        self.begin()

    def begin(self) -> None:
        """Count from now on."""
        self._began = time.perf_counter()
        self._before = {} if self._processes is None else self._processes.cpu_s()

    def figures(self) -> Figures:
        """Report the CPU time since the begin, and the memory now."""
        seconds = time.perf_counter() - self._began
        if self._processes is None:
            return Figures(seconds)
        used = {name: total - self._before.get(name, 0.0) for name, total in self._processes.cpu_s().items()}
        return Figures(seconds, dict(sorted(used.items(), key=lambda each: -each[1])), self._processes.memory_mb())


class Processes:
    """A process and all that descend from it.

    Attributes:
        seen: the name and the CPU time of each so far, seconds; also of ended processes.
    """

    def __init__(self, root: psutil.Process) -> None:
        self._root = root
        self.seen: dict[psutil.Process, tuple[str, float]] = {}

    @classmethod
    def of_port(cls, host: str, port: int) -> Processes | None:
        """Find the server that listens on a port of this machine; None if it is elsewhere, or another user's."""
        if not _is_here(host):
            return None
        try:
            open_ones = psutil.net_connections("tcp")
        except psutil.Error:
            return None
        pids = [each.pid for each in open_ones if each.status == psutil.CONN_LISTEN and each.laddr[1:] == (port,)]
        # Another user's process has no id here, for which psutil would take this process.
        pids = [pid for pid in pids if pid is not None]
        with suppress(psutil.Error, ValueError):
            process = psutil.Process(pids[0]) if pids else None
            if process is not None:
                # What `ensemble serve` starts is marked by who started it.
                marked = process.environ().get(MARK, "")
                return cls(psutil.Process(int(marked.partition("@")[0])) if marked else process)
        return None

    def cpu_s(self) -> dict[str, float]:
        """Sum the CPU time so far, seconds, by the processes' names; of processes that have ended as well."""
        for process in self._all():
            with suppress(psutil.Error):
                times = process.cpu_times()
                name = self.seen[process][0] if process in self.seen else _name(process)
                self.seen[process] = name, times.user + times.system
        return _summed(self.seen.values())

    def memory_mb(self) -> dict[str, float]:
        """Sum the proportional set size, megabytes, by the processes' names: a page that several share counts once.

        It takes about a millisecond for each process.
        """
        found = []
        for process in self._all():
            with suppress(psutil.Error):
                found.append((_name(process), process.memory_full_info().pss / 1e6))
        return _summed(sorted(found, key=lambda each: -each[1]))

    def _all(self) -> list[psutil.Process]:
        with suppress(psutil.Error):
            return [self._root, *self._root.children(recursive=True)]
        return []


def _summed(parts: Iterable[tuple[str, float]]) -> dict[str, float]:
    sums: dict[str, float] = {}
    for name, part in parts:
        sums[name] = sums.get(name, 0.0) + part
    return sums


def _is_here(host: str) -> bool:
    """Tell whether this machine has an address."""
    with suppress(OSError), socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host, 0))
        return True
    return False


def _name(process: psutil.Process) -> str:
    """Name a process: Ray's processes by what they run, Python's by their module or script."""
    words = process.cmdline()
    if not words or words[0].startswith("ray::"):
        return (words[0] if words else process.name()).split("(")[0][:LONGEST_NAME]
    if "python" in process.name():
        rest = [word for word in words[1:] if word != "-u"]
        found = rest[1] if rest[:1] == ["-m"] and len(rest) > 1 else (rest[0].rpartition("/")[2] if rest else "python")
        return found[:LONGEST_NAME]
    return process.name()
