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


def _group(root: Path) -> tuple[Path, bool]:
    """Find the group that this process is in, and whether control groups are of version 1."""
    name = "cpu" if (root / "cpu" / "cpu.cfs_quota_us").exists() else ""
    lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()]
    path = next((path for _, controllers, path in lines if name in controllers.split(",")), "/")
    return root / name / path.lstrip("/"), bool(name)


@contextmanager
def quota(cpus: float | None, root: Path = ROOT) -> Iterator[None]:
    """Bound the CPUs that processes started meanwhile may use together; None for all of them.

    Only starting belongs into the block: this process is in the group, too. `clean` removes the group.

    Raises:
        ScriptError: the group can't be made.
    """
    if cpus is None:
        yield
        return
    before, is_version_1 = _group(root)
    limited, used_us = before / f"ensemble-lab-{os.getpid()}-{time.monotonic_ns()}", round(cpus * PERIOD_US)
    files = {"cpu.max": f"{used_us} {PERIOD_US}"}
    if is_version_1:
        files = {"cpu.cfs_period_us": str(PERIOD_US), "cpu.cfs_quota_us": str(used_us)}
    try:
        if not is_version_1:
            (before / "cgroup.subtree_control").write_text("+cpu", encoding="utf-8")
        limited.mkdir()
        for name, text in {**files, "cgroup.procs": str(os.getpid())}.items():
            (limited / name).write_text(text, encoding="utf-8")
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
        while group.exists():
            try:
                group.rmdir()
            except OSError as err:
                if time.monotonic() > give_up:
                    raise ScriptError(f"{group} still has processes: {err}") from err
                time.sleep(0.1)
