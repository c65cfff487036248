"""What a load uses of this machine: CPU time and memory of the server's processes, energy, and the work of others."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Self

import psutil

from deployments.contract.names import MARK

LONGEST_NAME = 48
# Between two looks at the processes of this command, seconds.
LOOK_S = 0.5
ZONES = Path("/sys/class/powercap")


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


def difference(after: Mapping[str, float], before: Mapping[str, float]) -> dict[str, float]:
    """Subtract the CPU times of an earlier time, by name, the most first."""
    found = {name: used - before.get(name, 0.0) for name, used in after.items()}
    return dict(sorted(found.items(), key=lambda each: -each[1]))


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


class Energy:
    """Joules since it was made, of all processor packages; a counter that starts anew is taken into account."""

    def __init__(self, zones: Path = ZONES) -> None:
        """Find what can be read; raises OSError if nothing can."""
        self._files = [
            zone / "energy_uj"
            for zone in sorted(zones.glob("intel-rapl:*"))
            # A package's subzones are parts of it.
            if zone.name.count(":") == 1 and (zone / "name").read_text(encoding="ascii").startswith("package")
        ]
        if not self._files:
            raise OSError(f"{zones} has no counter of a processor package")
        self._most = [int((file.parent / "max_energy_range_uj").read_text(encoding="ascii")) for file in self._files]
        self._last = self._read()
        self._joules = 0.0

    def joules(self) -> float:
        """Count the joules so far. Call it every few minutes: a counter may start anew once in between, not twice."""
        now = self._read()
        for before, after, most in zip(self._last, now, self._most, strict=True):
            self._joules += (after - before if after >= before else after + most - before) / 1e6
        self._last = now
        return self._joules

    def _read(self) -> list[int]:
        return [int(file.read_text(encoding="ascii")) for file in self._files]


class Others:
    """What other processes use of this machine, from the beginning of a `with` block to its end.

    Attributes:
        cpu_s: that they used, seconds.
        cores: the same per second.
        name: of the processes that used the most; empty where no process here did.
    """

    cpu_s, cores, name = 0.0, 0.0, ""

    def __enter__(self) -> Self:
        self._own, self._over = Processes(psutil.Process()), threading.Event()
        self._began, self._busy_before, self._by_process = time.perf_counter(), _busy(), _cpu_by_process()
        self._own_before = sum(self._own.cpu_s().values())
        self._looks = threading.Thread(target=self._look, daemon=True)
        self._looks.start()
        return self

    def _look(self) -> None:
        # Servers of this command start and end meanwhile: what they used is known as long as they run.
        while not self._over.wait(LOOK_S):
            self._own.cpu_s()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._looks.join()
        own = sum(self._own.cpu_s().values()) - self._own_before
        # The other machines of this one's host are no processes here: the CPU time that they take is stolen.
        self.cpu_s = max(0.0, _busy() - self._busy_before - own)
        self.cores = self.cpu_s / max(time.perf_counter() - self._began, 1e-9)
        ours, used = {process.pid for process in self._own.seen}, dict[str, float]()
        for (pid, name), seconds in _cpu_by_process().items():
            if pid not in ours:
                used[name] = used.get(name, 0.0) + seconds - self._by_process.get((pid, name), 0.0)
        most = max(used, key=used.__getitem__, default="")
        self.name = most if most and used[most] > 0.1 * self.cpu_s else ""


def _busy() -> float:
    """Read the CPU time of the whole machine so far, with what its host took away, seconds."""
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system + times.irq + times.softirq + times.steal)


def _cpu_by_process() -> dict[tuple[int, str], float]:
    found = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            times = process.cpu_times()
            found[process.pid, process.name()] = times.user + times.system
    return found
