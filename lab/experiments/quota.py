"""A CPU quota, as a container has it: a control group that processes are started in."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from scripts.errors import ScriptError

ROOT = Path("/sys/fs/cgroup")
PERIOD_US = 100_000
EMPTY_S = 10.0


def _group(root: Path) -> tuple[Path, str]:
    """The group that this process is in, and the name of the controller's hierarchy; empty for version 2."""
    name = "cpu" if (root / "cpu" / "cpu.cfs_quota_us").exists() else ""
    lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()]
    path = next((path for _, controllers, path in lines if name in controllers.split(",")), "/")
    return root / name / path.lstrip("/"), name


@contextmanager
def quota(cpus: float | None, root: Path = ROOT) -> Iterator[None]:
    """What this process starts meanwhile may use so many CPUs together; None for all of them.

    Only starting belongs into the block: this process is in the group, too. The group goes at the next call.

    Raises:
        ScriptError: the group can't be made.
    """
    if cpus is None:
        yield
        return
    before, version1 = _group(root)
    limited = before / f"ensemble-lab-{os.getpid()}-{time.monotonic_ns()}"
    try:
        if not version1:
            (before / "cgroup.subtree_control").write_text("+cpu", encoding="utf-8")
        limited.mkdir()
        if version1:
            (limited / "cpu.cfs_period_us").write_text(str(PERIOD_US), encoding="utf-8")
            (limited / "cpu.cfs_quota_us").write_text(str(round(cpus * PERIOD_US)), encoding="utf-8")
        else:
            (limited / "cpu.max").write_text(f"{round(cpus * PERIOD_US)} {PERIOD_US}", encoding="utf-8")
        (limited / "cgroup.procs").write_text(str(os.getpid()), encoding="utf-8")
    except OSError as err:
        with suppress(OSError):
            limited.rmdir()
        raise ScriptError(
            f"a CPU quota can't be set: {err}; run as root, with control groups that can be written"
        ) from err
    try:
        yield
    finally:
        (before / "cgroup.procs").write_text(str(os.getpid()), encoding="utf-8")


def clean(root: Path = ROOT) -> None:
    """Remove the groups of this process; raises ScriptError if something still runs in one."""
    before, _ = _group(root)
    give_up = time.monotonic() + EMPTY_S
    for group in before.glob(f"ensemble-lab-{os.getpid()}-*"):
        while True:
            try:
                group.rmdir()
                break
            except OSError as err:
                if time.monotonic() > give_up:
                    raise ScriptError(f"{group} still has processes: {err}") from err
                time.sleep(0.1)
