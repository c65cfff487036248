"""A server that a measurement starts, on ports beside other servers' ports, and loads."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from copy import deepcopy
from pathlib import Path
from typing import Any

import yaml

from deployments.contract.hosts import LOOPBACK
from deployments.cpus import usable
from ensemble_capacity.load.load import Mode, Target
from ensemble_capacity.load.measure import Duration, Row, measure
from ensemble_capacity.load.protocols import Classify
from ensemble_capacity.load.server import Server
from ensemble_capacity.process import says_ready, started
from scripts import configuration
from scripts.errors import ScriptError
from scripts.serve.exposure import CERTIFICATE, CERTIFICATE_KEY
from scripts.serve.ports import Port, check_ports

READY_TIMEOUT_S, WARM_UP_S = 240.0, 1.5
# Serving takes as many ports in a row.
PORTS = 4
FIRST_PORT, LAST_PORT = 18400, 18800


@contextmanager
def serving(config: Mapping[str, Any], cores: int | None = None, traced_in: Path | None = None) -> Iterator[str]:
    """Serve a Serve config; gives the URL once every member has answered, and stops the server in the end.

    Args:
        config: the configuration to serve.
        cores: number of cores, of this process' cores; None for all.
        traced_in: the folder in which it runs and writes a trace of every request; None for no traces.

    Raises:
        ScriptError: it did not start.
    """
    with tempfile.TemporaryDirectory(prefix="ensemble-plan-") as folder, ExitStack() as stack:
        file, log, port = Path(folder) / "config.yaml", Path(folder) / "log", free_ports()
        file.write_text(yaml.safe_dump(opened(config)), encoding="utf-8")
        command = [sys.executable, "-P", "-m", "scripts.serve", str(file), "--ports-from", str(port)]
        environment = {name: value for name, value in os.environ.items() if name not in {CERTIFICATE, CERTIFICATE_KEY}}
        environment |= {} if traced_in is None else {"OTEL_TRACES_EXPORTER": "file"}
        with confined(cores):
            stack.enter_context(started(command, log, says_ready, READY_TIMEOUT_S, cwd=traced_in, env=environment))
        yield f"http://127.0.0.1:{port}"


def opened(config: Mapping[str, Any]) -> dict[str, Any]:
    """Open a Serve config to clients of this machine without keys."""
    made = deepcopy(dict(config))
    made["http_options"] = {**(made.get("http_options") or {}), "host": LOOPBACK}
    for application in configuration.ours(made):
        arguments = application.get("args") or {}
        arguments.pop("access", None)
        (arguments.get("cache") or {}).pop("per_key", None)
    return made


@contextmanager
def confined(cores: int | None) -> Iterator[None]:
    """Run processes that are started meanwhile on a number of cores; None for all."""
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, usable()[:cores])
        yield
    finally:
        os.sched_setaffinity(0, before)


def free_ports() -> int:
    """Find as many free ports in a row as serving needs; return the first.

    Raises:
        ScriptError: there are none.
    """
    for first in range(FIRST_PORT, LAST_PORT, PORTS):
        with suppress(ScriptError):
            check_ports(*(Port(LOOPBACK, port) for port in range(first, first + PORTS)))
            return first
    raise ScriptError(f"no {PORTS} ports in a row are free from {FIRST_PORT} to {LAST_PORT}; stop a server")


def loaded(url: str, photographs: Sequence[bytes], load: Mode, seconds: float) -> Row:
    """Load a server, and watch what its processes use meanwhile."""
    target = Target(url, Classify(), tuple(photographs))
    with Server(target, "ensemble") as server:
        return measure(target, load, Duration(WARM_UP_S, seconds), server=server)
