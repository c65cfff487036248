"""The servers that `ensemble benchmark` compares, each started, loaded and stopped alike."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import yaml

from scripts.errors import ScriptError
from scripts.lab.benchmark.peer import AS_IT_IS, Form, head, python_of
from scripts.lab.benchmark.workloads import ROOT, Placement, Workload
from scripts.lab.load.__main__ import wrapped
from scripts.serve.ports import Port, check_ports
from scripts.shipped import shipped

# The variables let two campaigns run side by side; what Serve listens on behind HAProxy has variables of its own.
HTTP_PORT = int(os.environ.get("ENSEMBLE_LAB_HTTP_PORT", "18100"))
GRPC_PORT = int(os.environ.get("ENSEMBLE_LAB_GRPC_PORT", "19100"))
READY_TIMEOUT_S, STOP_TIMEOUT_S = 120.0, 60.0
WARM_UP_S = 1.0
PEERS = Path(__file__).resolve().parent / "peers"
# A peer's file has the name of the package that it needs, which Python would find in the file's folder first.
UNSHADOWED = ("-P",)


@dataclass(frozen=True)
class System:
    """A server to measure.

    Attributes:
        name: `ours` or a file of `scripts/lab/benchmark/peers`.
        placement: of our nodes; None for a peer.
        protocols: what it is asked by.
        form: of what it is asked by HTTP.
        file: our configuration, where it is not the placement's usual one.
    """

    name: str
    placement: Placement | None
    protocols: tuple[str, ...]
    form: Form = AS_IT_IS
    file: str | None = None


OURS: dict[Placement, System] = {
    "colocated": System("ours", "colocated", ("http", "grpc")),
    "separate": System("ours", "separate", ("http", "grpc")),
}

# One process by HTTP alone, as it comes and with what makes it cheap.
VARIANTS = {
    "colocated": System("colocated", "colocated", ("http",)),
    "cascade": System("cascade", "colocated", ("http",), file="configs/cascade.yaml"),
    "student": System("student", "colocated", ("http",), file="configs/student.yaml"),
    "cached": System("cached", "colocated", ("http",), file="configs/cached.yaml"),
}


def named(names: list[str]) -> list[System]:
    """The systems of these names, in order; `ours` is two.

    Raises:
        ScriptError: there is no such system.
    """
    peers = sorted(path.stem for path in PEERS.glob("*.py"))
    known = ["limit", "ours", *VARIANTS, *peers]
    systems: list[System] = []
    for name in names:
        if name == "ours":
            systems += OURS.values()
        elif name in VARIANTS:
            systems.append(VARIANTS[name])
        elif name in peers:
            declared = head(PEERS / f"{name}.py").get("tool", {}).get("benchmark", {})
            systems.append(System(name, None, ("http",), Form.of(declared)))
        elif name != "limit":
            raise ScriptError(f"there is no system {name!r}; there are {', '.join(known)}")
    return systems


class Running:
    """A server that runs: where it is asked, and what its processes use."""

    def __init__(self, process: subprocess.Popen[bytes], form: Form, log: Path) -> None:
        """Set the process that all its others descend from, what a request is like, and what it prints to."""
        self._process = psutil.Process(process.pid)
        self._form = form
        self._log = log

    def processes(self) -> list[psutil.Process]:
        """Every process of the server."""
        return [self._process, *self._process.children(recursive=True)]

    def told(self, name: str) -> str:
        """The value of a variable that our server printed for other shells."""
        words = self._log.read_text(encoding="utf-8").split()
        return next(word.partition("=")[2] for word in words if word.startswith(f"{name}="))

    def cpu_s(self) -> dict[int, float]:
        """CPU seconds of each of its processes so far, user and system."""
        used = {}
        for process in self.processes():
            with suppress(psutil.Error):
                times = process.cpu_times()
                used[process.pid] = times.user + times.system
        return used

    def resident_mb(self) -> float:
        """Its processes' resident memory together, megabytes; a page that several share counts once."""
        total = 0.0
        for process in self.processes():
            with suppress(psutil.Error):
                total += process.memory_full_info().pss
        return total / 1e6

    def replicas(self, deployment: str) -> list[psutil.Process]:
        """The processes that run a deployment's replicas."""
        return replicas_among(self.processes(), deployment)

    def load(self, workload: Workload, protocol: str, clients: int, seconds: float) -> dict[str, Any]:
        """What `ensemble load` measures, in a process of its own, and what the server used meanwhile.

        Raises:
            ScriptError: a request failed.
        """
        url = (
            f"http://127.0.0.1:{HTTP_PORT}{self._form.path}" if protocol == "http" else f"grpc://127.0.0.1:{GRPC_PORT}"
        )
        command = [sys.executable, "-m", "scripts.lab.load", url, *map(str, workload.images)]
        command += ["--clients", str(clients), "--seconds", str(seconds), "--warm-up", str(WARM_UP_S)]
        command += ["--headers", *(f"{name}: {value}" for name, value in self._form.headers)]
        if self._form.body is not None:
            command += ["--body", self._form.body]
        if workload.repeats is not None:
            command += ["--repeats", str(workload.repeats)]
        before = self.cpu_s()
        done = subprocess.run(command, capture_output=True, text=True)  # noqa: S603
        if done.returncode != 0:
            raise ScriptError(f"the load could not be sent: {done.stderr[-1000:]}")
        used = sum(after - before.get(pid, 0.0) for pid, after in self.cpu_s().items())
        result: dict[str, Any] = json.loads(done.stdout)
        if result["errors"] or not result["requests"]:
            raise ScriptError(
                f"{result['errors']} requests failed, {result['requests']} did not: {result['first_error']}"
            )
        # Over the warm-up as well, like the CPU that was counted.
        per_request = seconds / (seconds + WARM_UP_S) * 1000 / result["requests"]
        return {
            "requests_per_s": result["requests_per_s"],
            "p50_ms": result["p50_ms"],
            "p99_ms": result["p99_ms"],
            "server_cpu_ms_per_request": used * per_request,
            "client_cpu_ms_per_request": result["cpu_s"] * 1000 / result["requests"],
            "resident_mb": self.resident_mb(),
        }


def replicas_among(processes: Iterable[psutil.Process], deployment: str) -> list[psutil.Process]:
    """Those of the processes that run a deployment's replicas."""
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
) -> Iterator[Running]:
    """Start a system, wait until it answers, and stop it at the end.

    Args:
        system: the server.
        workload: what it serves.
        edit: changes our configuration, for trying levers.
        environment: more of it.

    Raises:
        ScriptError: it did not start.
    """
    with tempfile.TemporaryDirectory() as temporary:
        command = _ours(system, workload, edit, Path(temporary)) if system.placement else _peer(system, workload)
        check_ports(Port("127.0.0.1", HTTP_PORT), Port("127.0.0.1", GRPC_PORT))
        log = Path(temporary) / "log"
        with log.open("wb") as stream:
            process = subprocess.Popen(  # noqa: S603
                command,
                stdout=stream,
                stderr=subprocess.STDOUT,
                cwd=ROOT if system.placement else temporary,
                env={**os.environ, **(environment or {})},
            )
        try:
            _wait(process, log, lambda: _is_ready(system, workload, log))
            yield Running(process, system.form, log)
        finally:
            _stop(process)


def _ours(system: System, workload: Workload, edit: Callable[[dict[str, Any]], None] | None, folder: Path) -> list[str]:
    assert system.placement is not None
    file = shipped(system.file) if system.file is not None else None
    config = workload.config(system.placement, HTTP_PORT, GRPC_PORT, file)
    if edit is not None:
        edit(config)
    (folder / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    return [sys.executable, "-m", "scripts.serve", str(folder / "config.yaml")]


def _peer(system: System, workload: Workload) -> list[str]:
    file = PEERS / f"{system.name}.py"
    python = python_of(file)
    size = ["--size", *map(str, workload.size), "--precision-hint", workload.precision or ""]
    return [python, *UNSHADOWED, str(file), "--port", str(HTTP_PORT), *size, *map(str, workload.models)]


def _is_ready(system: System, workload: Workload, log: Path) -> bool:
    if system.placement:
        return b"Ready." in log.read_bytes()
    with suppress(httpx.HTTPError):
        form = system.form
        body = wrapped(workload.images[0].read_bytes(), form.body)
        url = f"http://127.0.0.1:{HTTP_PORT}{form.path}"
        return httpx.post(url, content=body, headers=form.headers, timeout=30).status_code == 200
    return False


def _wait(process: subprocess.Popen[bytes], log: Path, is_ready: Callable[[], bool]) -> None:
    give_up = time.monotonic() + READY_TIMEOUT_S
    while not is_ready():
        if process.poll() is not None or time.monotonic() > give_up:
            raise ScriptError(f"the server did not start: {log.read_text(errors='replace')[-2000:]}")
        time.sleep(0.2)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End a server and every process that descends from it."""
    tree: list[psutil.Process] = []
    with suppress(psutil.Error):
        tree = psutil.Process(process.pid).children(recursive=True)
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
    with suppress(subprocess.TimeoutExpired):
        process.wait(STOP_TIMEOUT_S)
    for left in tree:
        with suppress(psutil.Error):
            left.kill()
    process.kill()
    process.wait()
