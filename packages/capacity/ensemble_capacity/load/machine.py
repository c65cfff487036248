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


class Processes:
    """A process and all that descend from it; no process without a root."""

    def __init__(self, root: psutil.Process | None) -> None:
        """Set the root, and begin to count."""
        self._root = root
        # The name and the CPU time of each so far, seconds; also of ended processes.
        self._seen: dict[psutil.Process, tuple[str, float]] = {}
        self.begin()

    @classmethod
    def of(cls, url: str) -> Processes:
        """Find the server at a URL; no process if it is on another machine, or another user's."""
        host, port = address(parsed(url))
        if not _is_here(host):
            return cls(None)
        with suppress(psutil.Error, ValueError):
            open_ones = psutil.net_connections("tcp")
            pids = [each.pid for each in open_ones if each.status == psutil.CONN_LISTEN and each.laddr[1:] == (port,)]
            # Another user's process has no id here, for which psutil would take this process.
            if pid := next(filter(None, pids), None):
                process = psutil.Process(pid)
                # What `ensemble serve` starts is marked by who started it.
                marked = process.environ().get(MARK, "")
                return cls(psutil.Process(int(marked.partition("@")[0])) if marked else process)
        return cls(None)

    def begin(self) -> None:
        """Count from now on."""
        self._began, self._before = time.perf_counter(), self.cpu_s()

    def figures(self) -> Figures:
        """Report the CPU time since the begin, and the memory now."""
        seconds = time.perf_counter() - self._began
        used = {name: total - self._before.get(name, 0.0) for name, total in self.cpu_s().items()}
        return Figures(seconds, dict(sorted(used.items(), key=lambda each: -each[1])), self.memory_mb())

    def cpu_s(self) -> dict[str, float]:
        """Sum the CPU time so far, seconds, by the processes' names; of processes that have ended as well."""
        for process in self._all():
            with suppress(psutil.Error):
                times = process.cpu_times()
                name = self._seen[process][0] if process in self._seen else _name(process)
                self._seen[process] = name, times.user + times.system
        return _summed(self._seen.values())

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
            return [] if self._root is None else [self._root, *self._root.children(recursive=True)]
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
