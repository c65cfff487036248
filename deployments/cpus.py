"""How many CPUs this process may use."""

from __future__ import annotations

import math
import os
from pathlib import Path

CGROUP_V2 = Path("/sys/fs/cgroup/cpu.max")
CGROUP_V1 = (Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"), Path("/sys/fs/cgroup/cpu/cpu.cfs_period_us"))


def available_cpus() -> int:
    """The container's CPU quota, rounded up, or the process' affinity if that is less; at least 1.

    `os.cpu_count()` counts the cores of the host, of which a container may use only two.
    """
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _quota()
    return max(1, affinity if quota is None else min(affinity, math.ceil(quota)))


def _quota() -> float | None:
    try:
        if CGROUP_V2.is_file():
            quota, period = CGROUP_V2.read_text().split()
        else:
            quota, period = (file.read_text().strip() for file in CGROUP_V1)
        return None if quota in {"max", "-1"} else float(quota) / float(period)
    except (OSError, ValueError):
        return None
