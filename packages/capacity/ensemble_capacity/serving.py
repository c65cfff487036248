"""A server that a command starts for itself and loads: until it is ready, and to the end of all its processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from copy import deepcopy
from pathlib import Path
from typing import Any

import psutil
import yaml

from deployments.contract.hosts import LOOPBACK
from deployments.cpus import usable
from ensemble_capacity.load.load import Mode, Target
from ensemble_capacity.load.measure import Duration, Row, measure
from ensemble_capacity.load.protocols import Classify
from scripts import configuration
from scripts.errors import ScriptError
from scripts.serve.exposure import CERTIFICATE, CERTIFICATE_KEY
from scripts.serve.ports import Port, check_ports

READY_TIMEOUT_S, STOP_TIMEOUT_S, LOOK_EVERY_S = 240.0, 60.0, 0.2
WARM_UP_S = 1.5
# Serving takes as many ports in a row.
PORTS = 4
FIRST_PORT, LAST_PORT = 18400, 18800


def says_ready(log: Path) -> bool:
    """Tell whether `ensemble serve` has printed that every member answered."""
    return b"Ready." in log.read_bytes()


@contextmanager
def started(
    command: Sequence[str], log: Path, is_ready: Callable[[Path], bool], timeout_s: float, **options: Any
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a server that prints to a log, wait until it is ready by this log, and end it at the end of the block.

    Raises:
        ScriptError: it has ended, or is not ready in time; with the end of its log.
    """
    with log.open("wb") as stream:
        process = subprocess.Popen(command, stdout=stream, stderr=subprocess.STDOUT, **options)  # noqa: S603
    give_up = time.monotonic() + timeout_s
    try:
        while not is_ready(log):
            if process.poll() is not None or time.monotonic() > give_up:
                raise ScriptError(f"the server did not start: {log.read_text(errors='replace')[-2000:]}")
            time.sleep(LOOK_EVERY_S)
        yield process
    finally:
        stop(process)


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a server, as Ctrl-C does, and then every process of it that is left."""
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
        confined = [] if cores is None else ["taskset", "--cpu-list", ",".join(map(str, usable()[:cores]))]
        command = [*confined, sys.executable, "-P", "-m", "scripts.serve", str(file), "--ports-from", str(port)]
        environment = {name: value for name, value in os.environ.items() if name not in {CERTIFICATE, CERTIFICATE_KEY}}
        environment |= {} if traced_in is None else {"OTEL_TRACES_EXPORTER": "file"}
        stack.enter_context(started(command, log, says_ready, READY_TIMEOUT_S, cwd=traced_in, env=environment))
        yield f"http://127.0.0.1:{port}"


def opened(config: Mapping[str, Any]) -> dict[str, Any]:
    """Open a Serve config to clients of this machine without keys."""
    made = deepcopy(dict(config))
    made["http_options"] = {**(made.get("http_options") or {}), "host": LOOPBACK}
    for application in configuration.ours(made):
        arguments = application.get("args") or {}
        arguments.pop("access", None)
        for cache in (arguments.get("cache"), (arguments.get("features") or {}).get("cache")):
            (cache or {}).pop("per_key", None)
    return made


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
    return measure(target, load, Duration(WARM_UP_S, seconds), watched=True)


def read(file: Path) -> dict[str, Any]:
    """Read a Serve config of one application, and check it and its models before it is served.

    Raises:
        ScriptError: the file is no such config.
        ConfigurationError: the application can't be built.
    """
    config = configuration.read(file)
    configuration.check(only_application(config), config)
    return config


def only_application(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the application of a Serve config.

    Raises:
        ScriptError: there is not exactly one of this project.
    """
    found = list(configuration.ours(config))
    if len(found) != 1:
        raise ScriptError(f"a configuration of one application can be served here; this one has {len(found)}")
    return found[0]
