"""The servers that `ensemble benchmark` compares, each started, loaded and stopped alike."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import psutil
import yaml

from ensemble_capacity.load.load import Arrivals, Closed, Mode, Target
from ensemble_capacity.load.machine import Processes
from ensemble_capacity.load.measure import Duration, Row, measure
from ensemble_capacity.load.protocols import Classify, RequestBuilder
from ensemble_capacity.load.search import Trial, highest
from ensemble_capacity.serving import says_ready, started
from ensemble_serving.transports import NoResponse, once
from lab.benchmark.peer import DECLARED, PEERS, SHARED_CODE, Posted, TorchServe, grpc_form, python_of
from lab.benchmark.workloads import ROOT, Placement, Workload
from lab.network import Machine
from scripts.errors import ScriptError
from scripts.serve.environment import switches
from scripts.serve.ports import Port, check_ports
from scripts.shipped import shipped

# The variables let two campaigns run side by side; what Serve listens on behind HAProxy has variables of its own.
HTTP_PORT = int(os.environ.get("ENSEMBLE_LAB_HTTP_PORT", "18100"))
GRPC_PORT = int(os.environ.get("ENSEMBLE_LAB_GRPC_PORT", "19100"))
READY_TIMEOUT_S, PORTS_TIMEOUT_S = 120.0, 15.0
WARM_UP_S = 1.0
# How many times the p50 of a lone client the p99 may be, and how many requests tell a p99.
TAIL, TAIL_REQUESTS = 3, 200
MODEL = "ensemble"
URLS = {"http": f"http://127.0.0.1:{HTTP_PORT}", "grpc": f"grpc://127.0.0.1:{GRPC_PORT}"}
# A peer's file has the name of the package that it needs, which Python would find in the file's folder first.
UNSHADOWED = ("-P",)


@dataclass(frozen=True)
class System:
    """A server to measure.

    Attributes:
        name: `ours` or a file of `lab/benchmark/peers`.
        placement: of our nodes; None for a peer.
        forms: of a request, by the protocols of the server.
        file: our configuration, where it is not the placement's usual one; or a peer's program.
        arguments: further ones of a peer's program.
        takes_sizes: whether a peer serves models of several sizes.
    """

    name: str
    placement: Placement | None
    forms: Mapping[str, RequestBuilder]
    file: str | None = None
    arguments: tuple[str, ...] = ()
    takes_sizes: bool = False


HTTP = {"http": Classify()}
BOTH: dict[str, RequestBuilder] = {**HTTP, "grpc": grpc_form()}
OURS: dict[Placement, System] = {
    "colocated": System("ours", "colocated", BOTH),
    "separate": System("ours", "separate", BOTH),
}

# What is measured beside `ours`: one process by HTTP alone, a process per core, and what makes an answer cheap.
VARIANTS = {
    "colocated": System("colocated", "colocated", HTTP),
    "throughput": System("throughput", "colocated", BOTH, "configs/throughput.yaml"),
    "cascade": System("cascade", "colocated", HTTP),
    "student": System("student", "colocated", HTTP, "configs/student.yaml"),
    "cached": System("cached", "colocated", HTTP, "configs/cached.yaml"),
}


def named(names: Sequence[str]) -> list[System]:
    """Return the systems of these names, in order; `ours` is two. Raises ScriptError if there is no such system."""
    alone = {name: [system] for name, system in {**VARIANTS, **peers()}.items()}
    known: dict[str, list[System]] = {"limit": [], "ours": list(OURS.values()), **alone}
    for name in names:
        if name not in known:
            raise ScriptError(f"there is no system {name!r}; there are {', '.join(known)}")
    return [system for name in names for system in known[name]]


def peers() -> dict[str, System]:
    """Return the servers to compare with, and their variants, by name; see peers.yaml."""
    found = {}
    for name, declared in DECLARED.items():
        headers = declared.get("headers")
        classify = Posted(declared.get("path", "/classify"), headers and tuple(headers.items()), declared.get("body"))
        forms: dict[str, RequestBuilder] = {"http": classify}
        if grpc := declared.get("grpc"):
            forms["grpc"] = TorchServe() if grpc == "torchserve" else grpc_form(declared.get("shape", (1,)))
        plain = System(name, None, forms, str(PEERS / f"{name}.py"), takes_sizes=declared.get("sizes", False))
        found[name] = plain
        for variant, arguments in declared.get("variants", {}).items():
            variant_name = f"{name}-{variant}"
            found[variant_name] = replace(plain, name=variant_name, arguments=tuple(arguments))
    return found


class Running:
    """A server that runs: where it is asked, and what its processes use."""

    def __init__(self, process: subprocess.Popen[bytes], system: System, log: Path) -> None:
        """Set the process that all its others descend from, the system that it is, and what it prints to."""
        self._process = psutil.Process(process.pid)
        self._usage = Processes(self._process)
        self._system = system
        self._log = log

    def processes(self) -> list[psutil.Process]:
        """Return every process of the server."""
        return [self._process, *self._process.children(recursive=True)]

    def told(self, name: str) -> str:
        """Read the value of a variable in the file that our server names for other shells."""
        words = self._log.read_text(encoding="utf-8").split()
        variables = Path(words[words.index("source") + 1]).read_text(encoding="utf-8").split()
        return next(word.partition("=")[2] for word in variables if word.startswith(f"{name}="))

    def cpu_s(self) -> float:
        """Return the CPU seconds of the server's processes so far, user and system; ended processes count as well."""
        return sum(self._usage.cpu_s().values())

    def resident_mb(self) -> float:
        """Return the processes' resident memory together, megabytes; a page that several share counts once."""
        return sum(self._usage.memory_mb().values())

    def replicas(self, deployment: str) -> list[psutil.Process]:
        """Return the processes that run a deployment's replicas."""
        return replicas_among(self.processes(), deployment)

    def row(
        self,
        workload: Workload,
        protocol: str,
        mode: Mode,
        seconds: float,
        timeout_s: float = Target.timeout_s,
    ) -> Row:
        """Measure a load; requests may have failed, also by the time-out."""
        target = Target(
            URLS[protocol],
            self._system.forms[protocol],
            tuple(path.read_bytes() for path in workload.images),
            repeats=workload.repeats,
            timeout_s=timeout_s,
        )
        return measure(target, mode, Duration(WARM_UP_S, seconds))

    def batches(self) -> Counter[int]:
        """Count the batches so far, by their number of images, as the server reports them."""
        [stats] = (
            httpx.get(f"{URLS['http']}/v2/models/{MODEL}/stats", timeout=30).raise_for_status().json()["model_stats"]
        )
        return Counter({int(each["batch_size"]): int(each["compute_infer"]["count"]) for each in stats["batch_stats"]})

    def load(self, workload: Workload, protocol: str, clients: int, seconds: float) -> dict[str, Any]:
        """Measure a closed loop of clients, and the server's use of the machine meanwhile.

        Raises ScriptError if a request failed.
        """
        before = self.cpu_s()
        row = self.row(workload, protocol, Closed(clients), seconds)
        used = self.cpu_s() - before
        if row.failed or not row.requests:
            raise ScriptError(f"{row.failed} requests failed, {row.requests} did not: {row.first_error}")
        # Over the warm-up as well, like the CPU that was counted.
        per_request = seconds / (seconds + WARM_UP_S) * 1000 / row.requests
        return {
            "requests": row.requests,
            "requests_per_s": row.requests_per_s,
            "p50_ms": row.percentiles_ms["p50"],
            "p99_ms": row.percentiles_ms["p99"],
            "server_cpu_ms_per_request": used * per_request,
            "client_cpu_ms_per_request": row.client_cpu_ms,
            "resident_mb": self.resident_mb(),
        }

    def rate_within_tail(self, workload: Workload, protocol: str, lone_ms: float, most: float, seconds: float) -> float:
        """Search the highest rate of Poisson arrivals below `most` whose p99 is within the tail; 0 if there is none.

        A rate with a failed request does not hold. It gets as many seconds as `TAIL_REQUESTS` take, or more.
        """

        def at(rate: float) -> Trial:
            row = self.row(workload, protocol, Arrivals(rate), max(seconds, TAIL_REQUESTS / rate))
            holds = not row.failed and row.percentiles_ms["p99"] <= TAIL * lone_ms
            return Trial(rate, row.requests_per_s, holds)

        return highest(at, 0.8 * most, most)


def replicas_among(processes: Iterable[psutil.Process], deployment: str) -> list[psutil.Process]:
    """Return the processes that run a deployment's replicas."""
    return [p for p in processes if f"ServeReplica:ensemble:{deployment}" in " ".join(_command(p))]


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


@contextmanager
def running(
    system: System,
    workload: Workload,
    edit: Callable[[dict[str, Any]], None] | None = None,
    environment: Mapping[str, str] | None = None,
    machine: Machine | None = None,
    inside: Sequence[str] = (),
) -> Iterator[Running]:
    """Start a system, wait until it answers, and stop it at the end; raise ScriptError if it did not start.

    `edit` changes our configuration. On a `machine` of a network, ours listens for anyone. `inside` is the beginning of
    a command that runs the rest of it elsewhere, as in a control group.
    """
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        command = _ours(system, workload, edit, folder, machine) if system.placement else _peer(system, workload)
        _wait_for_ports()
        log, env = folder / "log", {**_inherited(system), **(environment or {})}
        where, is_ready = (ROOT, says_ready) if system.placement else (folder, partial(_answers, system, workload))
        with started([*inside, *command], log, is_ready, READY_TIMEOUT_S, cwd=where, env=env) as process:
            yield Running(process, system, log)


def _inherited(system: System) -> dict[str, str]:
    """Return a server's environment: this process' own; for a peer, with what peers share, and without our switches."""
    if system.placement is not None:
        return dict(os.environ)
    ours = switches()
    return {name: value for name, value in os.environ.items() if name not in ours} | {"PYTHONPATH": str(SHARED_CODE)}


def _wait_for_ports() -> None:
    """Wait until nothing listens where servers do: a worker of the one before may need a moment to end.

    Raises ScriptError if something still does.
    """
    give_up = time.monotonic() + PORTS_TIMEOUT_S
    while True:
        try:
            return check_ports(Port("127.0.0.1", HTTP_PORT), Port("127.0.0.1", GRPC_PORT))
        except ScriptError:
            if time.monotonic() > give_up:
                raise
        time.sleep(0.2)


def _ours(
    system: System,
    workload: Workload,
    edit: Callable[[dict[str, Any]], None] | None,
    folder: Path,
    machine: Machine | None,
) -> list[str]:
    assert system.placement is not None
    named = workload.cascade if system.name == "cascade" else system.file
    file = shipped(named) if named is not None else None
    config = workload.config(system.placement, HTTP_PORT, GRPC_PORT, file)
    if edit is not None:
        edit(config)
    if machine is not None:
        config["http_options"]["host"] = machine.address
    (folder / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    command = [sys.executable, "-P", "-m", "scripts.serve", str(folder / "config.yaml")]
    return command if machine is None else [*machine.inside, *command, "--without-keys"]


def can_serve(system: System, workload: Workload) -> bool:
    """Tell whether a system can serve the models of a workload."""
    return system.placement is not None or system.takes_sizes or len(set(workload.sizes)) == 1


def _peer(system: System, workload: Workload) -> list[str]:
    assert system.file is not None
    if not can_serve(system, workload):
        raise ScriptError(f"{system.name} serves models of one size only; leave it out by --systems")
    command = [python_of(Path(system.file).stem), *UNSHADOWED, system.file, "--port", str(HTTP_PORT)]
    if "grpc" in system.forms:
        command += ["--grpc-port", str(GRPC_PORT)]
    # One size for all models, or the size of each.
    given = workload.sizes if len(set(workload.sizes)) > 1 else workload.sizes[:1]
    command += ["--size", *(str(edge) for size in given for edge in size), "--precision-hint", workload.precision or ""]
    return [*command, *system.arguments, *map(str, workload.models)]


def _answers(system: System, workload: Workload, _: Path) -> bool:
    with suppress(NoResponse):
        request = system.forms["http"].request([workload.images[0].read_bytes()])
        return once(URLS["http"], request, timeout_s=30).ok
    return False
