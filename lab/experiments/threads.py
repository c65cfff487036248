"""Workers by threads: copies of the whole graph, the threads of each model in them, pinned or not, and a CPU quota."""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from deployments.cpus import available_cpus, usable
from graph.placement import share_of_threads
from lab.benchmark.systems import OURS, running
from lab.benchmark.workloads import MEMBERS, changed, workload
from lab.experiments.engines import ENGINES, Worker, together
from lab.experiments.experiment import declared
from lab.rows import Part, Row, Rows, enough, highest, measured
from scripts.errors import ScriptError

CGROUPS = Path("/sys/fs/cgroup")
PERIOD_US = 100_000
EMPTY_S = 10.0


@contextmanager
def quota(cpus: float | None, root: Path = CGROUPS) -> Iterator[tuple[str, ...]]:
    """Make a control group that may use so many CPUs; gives the beginning of a command that runs in it.

    Raises ScriptError if the group can't be made, or something still runs in it at the end.
    """
    if cpus is None:
        yield ()
        return
    used_us, version_1 = str(round(cpus * PERIOD_US)), root / "cpu"
    group = (version_1 if version_1.exists() else root) / f"ensemble-lab-{os.getpid()}"
    try:
        if version_1.exists():
            files = {"cpu.cfs_period_us": str(PERIOD_US), "cpu.cfs_quota_us": used_us}
        else:
            files = {"cpu.max": f"{used_us} {PERIOD_US}"}
            (root / "cgroup.subtree_control").write_text("+cpu", encoding="utf-8")
        group.mkdir()
        for name, text in files.items():
            (group / name).write_text(text, encoding="utf-8")
    except OSError as err:
        with suppress(OSError):
            group.rmdir()
        raise ScriptError(
            f"a CPU quota can't be set: {err}; run as root, with control groups that can be written"
        ) from err
    try:
        yield "sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh"
    finally:
        _remove(group)


def _remove(group: Path) -> None:
    """Remove a control group, once the processes in it have ended."""
    give_up = time.monotonic() + EMPTY_S
    while group.exists():
        try:
            group.rmdir()
        except OSError as err:
            if time.monotonic() > give_up:
                raise ScriptError(f"{group} still has processes: {err}") from err
            time.sleep(0.1)


CLIENTS, QUOTA, TIMES = 32, 1.5, 3
STORED = ("requests", "requests_per_s", "p50_ms", "p99_ms")
SERVED, NETWORK = "this server", "ResNet-50"
TORCH, OPENVINO = "PyTorch", "OpenVINO"


@dataclass(frozen=True)
class Setting:
    """A point of the grid.

    Attributes:
        workers: processes with the whole graph, or with one network alone.
        threads: of each model in each of them.
        pinned: whether each worker has cores of its own (`cpus: auto`).
        quota: CPUs that all workers may use together; None for all CPUs of the machine.
        computed: by this server, or by an engine alone.
    """

    workers: int
    threads: int
    pinned: bool
    quota: float | None = None
    computed: str = SERVED

    @property
    def is_default(self) -> bool:
        """Whether a configuration that says nothing about threads gets this here."""
        cores = available_cpus() if self.quota is None else max(1, math.floor(self.quota))
        default = (SERVED, 1, share_of_threads(cores, len(MEMBERS), 1), False)
        return (self.computed, self.workers, self.threads, self.pinned) == default

    def edit(self, config: dict[str, Any]) -> None:
        """Change the Serve config of one process."""
        options = {"num_replicas": self.workers, "ray_actor_options": {"num_cpus": 0.5}}
        changed({"cpus": "auto" if self.pinned else None}, {"threads": self.threads}, options)(config)

    def load(self, seconds: float) -> Iterator[Row]:
        """Serve and load it, or compute the network alone, one image after the other in each worker."""
        if self.computed != SERVED:
            yield self._alone(seconds)
            return
        load = workload("embedded", "int8")
        with quota(self.quota) as inside, running(OURS["colocated"], load, self.edit, inside=inside) as server:
            found = server.load(load, "http", CLIENTS, seconds)
        yield {name: found[name] for name in STORED}

    def _alone(self, seconds: float) -> Row:
        """Measure a network alone, for longer than a server, so that enough images are computed."""
        cores, seconds = usable(), seconds * TIMES
        share = max(1, len(cores) // self.workers)
        own = [tuple(cores[first : first + share]) for first in range(0, self.workers * share, share)]
        engine = partial(ENGINES[self.computed], NETWORK, "float32")
        workers = [Worker(engine, self.threads, cpus=cpus if self.pinned else ()) for cpus in own]
        found = together(workers, seconds)
        rate = sum(each["images_per_s"] for each in found)
        p50 = statistics.median(each["ms"] for each in found)
        return {"requests": round(rate * seconds), "requests_per_s": rate, "p50_ms": p50}


def grid() -> list[Setting]:
    """List workers and threads up to the cores, pinned or in a quota; and the document's steps for a network alone."""
    cores = available_cpus()
    one, many, over, pinned = (1, 1, False), (cores, 1, False), (cores, cores, False), (cores, 1, True)
    found = [Setting(*each) for each in (one, many, over, pinned)]
    found += [Setting(*each, quota=QUOTA) for each in (one, many)]
    found += [Setting(*each, computed=TORCH) for each in ((1, cores, False), over, many, pinned)]
    found += [Setting(*each, computed=OPENVINO) for each in (many, pinned)]
    return list(dict.fromkeys(found))


def parts(seconds: float) -> Sequence[Part]:
    """Serve and load every setting."""
    return [
        Part(str(each), partial(each.load, seconds), {**asdict(each), "default": each.is_default}) for each in grid()
    ]


def shown(rows: Rows) -> Rows:
    """Add the share of the best rate of what computes the same on the same CPUs."""
    found = [{"computed": SERVED, **row} for row in rows]
    best = highest(measured(found), "requests_per_s", "computed", "quota")
    for row in found:
        row["cpus"] = "all" if row["quota"] is None else f"a quota of {row['quota']:g}"
        row["own"] = "pinned" if row["pinned"] else "unpinned"
        row["where"] = f"{row['cpus']}, {row['own']}" if row["pinned"] else row["cpus"]
        if "error" not in row:
            row["share"] = 100 * row["requests_per_s"] / best[row["computed"], row["quota"]]["requests_per_s"]
    return found


def compare(rows: Rows) -> Mapping[str, str]:
    """Take the same steps here: one worker, more workers of as many threads, matched threads, and pinned ones.

    The document's servers are PyTorch's. OpenVINO has the place of Intel's extension, which computes there after all
    steps.
    """
    at = {
        (row["computed"], row["workers"], row["threads"], row["pinned"]): row["requests_per_s"]
        for row in enough(rows)
        if row["quota"] is None
    }
    cores = max((workers for _, workers, _, _ in at), default=1)
    base, more = (TORCH, 1, cores, False), (TORCH, cores, cores, False)
    pinned = (TORCH, cores, 1, True)
    settings = {
        "the base: one worker with the default threads": [base],
        "more workers with the default threads": [more],
        "threads matched to cores, by four workers": [(TORCH, cores, 1, False)],
        "threads matched, pinned to physical cores, by IPEX": [pinned],
        "a purely neural model, before all steps": [base],
        "a purely neural model, after all steps": [pinned, (OPENVINO, cores, 1, True)],
    }
    told = {
        what: [f"{at[key]:.1f} images/s by {key[0]}: {key[1]} x {key[2]}{', pinned' * key[3]}" for key in keys]
        for what, keys in settings.items()
        if all(key in at for key in keys)
    }
    found = {what: "; ".join(each) for what, each in told.items()}
    if base in at and more in at:
        verdict = "worse" if at[more] < at[base] else "better, so not reproduced"
        found["more workers with the default threads"] += f", {verdict}"
    return found


THREADS = declared("threads", parts=parts, ours=lambda row: row["default"], shown=shown, computed=compare)
