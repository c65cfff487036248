"""The CPUs that this process may use, by core and NUMA node, and the CPUs of a replica."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from deployments.contract.errors import ConfigurationError

if TYPE_CHECKING:
    from deployments.contract.settings import Cpus

CGROUPS, OWN_CGROUP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
SYSTEM = Path("/sys/devices/system")


def available_cpus() -> int:
    """Return the CPU quota of the container or service, rounded down, or a smaller affinity of the process; at least 1.

    Both threads of a core count; `os.cpu_count()` counts the CPUs of the host, of which a container may use only two.
    Rounded up, a quota would be used up before its period ends, and all threads would stand still until the next one.
    """
    return _within_quota(len(_affinity()))


def node_cpus() -> int:
    """Return how many CPUs the replicas of this machine share: the affinity of Ray's process, within the quota."""
    return _within_quota(len(_affinity(os.getppid())))


def available_cores(system: Path = SYSTEM) -> int:
    """Return the cores whose CPUs this process may use, within the quota: how many threads of a model should compute.

    Two threads on one core share its arithmetic units, so that a model gains nothing by the second one.
    """
    return _within_quota(len(group_by_core(_affinity(), system)))


def describe_cores(system: Path = SYSTEM) -> str:
    """Describe the cores for people, such as `4 cores (8 CPUs: two threads per core)`."""
    cpus, cores, quota = len(_affinity()), len(group_by_core(_affinity(), system)), _quota()
    notes = [f"{cpus} CPUs: some cores have two threads"] if cpus > cores else []
    if quota is not None and quota < cpus:
        notes.append(f"a quota of {quota:g} CPUs on {cores} cores")
    return f"{available_cores(system)} cores" + (f" ({'; '.join(notes)})" if notes else "")


def _affinity(process: int = 0) -> set[int]:
    return os.sched_getaffinity(process) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


def _within_quota(count: int) -> int:
    quota = _quota()
    return max(1, count if quota is None else min(count, math.floor(quota)))


def _quota() -> float | None:
    """Find the least quota of this process' cgroup and the cgroups above it, CPUs; None without any quota."""
    quotas = []
    for limit in _limits():
        with suppress(OSError, ValueError):
            quota, period = " ".join(file.read_text() for file in limit).split()
            if quota not in {"max", "-1"}:
                quotas.append(float(quota) / float(period))
    return min(quotas, default=None)


def _limits() -> Iterator[tuple[Path, ...]]:
    """List the files that may have a quota and its period: a file per cgroup of version 2, two of version 1."""
    first = [CGROUPS / "cpu"]
    with suppress(OSError):
        lines = [line.split(":", 2) for line in OWN_CGROUP.read_text().splitlines()]
        groups = (first[0] / path.strip("/") for _, controllers, path in lines if "cpu" in controllers.split(","))
        first += [folder for each in groups for folder in (each, *each.parents)]
    for folder in first:
        yield folder / "cpu.cfs_quota_us", folder / "cpu.cfs_period_us"
    with suppress(OSError):
        own = CGROUPS / OWN_CGROUP.read_text().partition("0::/")[2].strip()
        yield from ((folder / "cpu.max",) for folder in (own, *own.parents))


def usable(system: Path = SYSTEM) -> tuple[int, ...]:
    """List the CPUs that this process may run on: one of each core, then the second ones."""
    cores = group_by_core(_affinity(), system)
    ranks = range(max(map(len, cores)))
    return tuple(core[rank] for rank in ranks for core in cores if rank < len(core))


def group_by_core(cpus: Iterable[int], system: Path = SYSTEM) -> list[tuple[int, ...]]:
    """Group the hyper-threads of each core; list the cores of one NUMA node after each other."""
    nodes = {cpu: number for number, node in enumerate(_nodes(system)) for cpu in node}
    cores: dict[tuple[int, ...], list[int]] = {}
    for cpu in sorted(cpus):
        siblings = {cpu}
        with suppress(OSError, ValueError):
            siblings |= parse_cpu_list((system / f"cpu/cpu{cpu}/topology/thread_siblings_list").read_text())
        cores.setdefault(tuple(sorted(siblings)), []).append(cpu)
    return sorted((tuple(each) for each in cores.values()), key=lambda core: (nodes.get(core[0], 0), core))


def _nodes(system: Path) -> list[set[int]]:
    found = []
    for folder in sorted((system / "node").glob("node[0-9]*"), key=lambda folder: int(folder.name[4:])):
        with suppress(OSError, ValueError):
            found.append(parse_cpu_list((folder / "cpulist").read_text()))
    return found


def parse_cpu_list(text: str) -> set[int]:
    """Parse a list of numbers as the kernel writes it, such as `0-3,8`; raises ValueError for another text."""
    ends = [part.partition("-")[::2] for part in text.strip().split(",") if part]
    return {cpu for first, last in ends for cpu in range(int(first), int(last or first) + 1)}


def cpu_ns(pid: int) -> int:
    """Return the CPU time that a process has used, nanoseconds; raises OSError if the process has ended."""
    # As clock_getcpuclockid(3) of Linux numbers a process' clock.
    return time.clock_gettime_ns(~pid << 3 | 2)


def share(cpus: Collection[int], index: int, parts: int, system: Path = SYSTEM) -> tuple[int, ...]:
    """Return one of `parts` parts of CPUs, in whole cores; with fewer cores than parts, several parts share a core."""
    cores = group_by_core(cpus, system)
    first = index * len(cores) // parts
    mine = cores[first : max(first + 1, (index + 1) * len(cores) // parts)]
    return tuple(cpu for core in mine for cpu in core)


def pin(cpus: Collection[int]) -> None:
    """Restrict this process to these CPUs: its threads of now and of later.

    Raises:
        OSError: one of them is not there, or may not be used.
    """
    os.sched_setaffinity(0, cpus)
    for thread in Path("/proc/self/task").iterdir():
        # It may have ended.
        with suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread.name), cpus)


# How many replicas of this process' deployment share the cores that it computes on; set before its nodes are made.
REPLICAS: ContextVar[int] = ContextVar("REPLICAS", default=1)


@dataclass(frozen=True)
class Pinning:
    """The CPUs of a deployment's replicas: these numbers, or for each replica a part of the CPUs that no entry names.

    Attributes:
        cpus: by number, or `auto`.
        index: of the deployment, among those with `auto`.
        parts: how many those are.
        taken: the CPUs that other deployments name.
    """

    cpus: Cpus
    index: int = 0
    parts: int = 1
    taken: frozenset[int] = frozenset()

    def pin(self, rank: int, replicas: int) -> tuple[int, ...]:
        """Pin this process, one of `replicas` on this machine; raises ConfigurationError if it can't be pinned."""
        given = usable()
        if self.cpus == "auto":
            free = [cpu for cpu in given if cpu not in self.taken] or given
            chosen = share(share(free, self.index, self.parts), rank % replicas, replicas)
        else:
            chosen = self.cpus
        try:
            pin(chosen)
        except OSError as err:
            raise ConfigurationError(f"cpus: {list(chosen)} can't be used; there are {list(given)}") from err
        return chosen
