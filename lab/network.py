"""Machines on a network: each a network namespace with an address of its own, all on one bridge."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from scripts.errors import ScriptError

NETWORK = "10.77.0"
_numbers = itertools.count(1)


def can_make() -> bool:
    """Tell whether this process may make network namespaces, and has the command for it."""
    return os.geteuid() == 0 and shutil.which("ip") is not None


def run(*command: str | Path) -> str:
    """Run a command that must succeed, and return its output."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout  # noqa: S603


class Machine:
    """A network namespace, and the processes in it.

    Attributes:
        address: its own, on the bridge.
        inside: the beginning of a command that runs in it.
    """

    def __init__(self, namespace: str, address: str) -> None:
        """Set the namespace, which exists."""
        self.address = address
        self.inside = ("ip", "netns", "exec", namespace)
        self._namespace = namespace

    def start(self, *command: object, **options: Any) -> subprocess.Popen[Any]:
        """Start a process in the namespace."""
        return subprocess.Popen([*self.inside, *map(str, command)], **options)  # noqa: S603

    def run(self, *command: object, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run a command in the namespace until it has ended."""
        return subprocess.run([*self.inside, *map(str, command)], capture_output=True, text=True, **options)  # noqa: S603

    def kill(self) -> None:
        """Kill every process in it at once, as a crash of the machine does."""
        while pids := run("ip", "netns", "pids", self._namespace).split():
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            time.sleep(0.01)

    def cable(self, state: str) -> None:
        """Put the cable in (`up`) or pull it out (`down`)."""
        run(*self.inside, "ip", "link", "set", "eth0", state)

    def traffic(self) -> tuple[int, int]:
        """Count the bytes that the interface has received and sent so far, with all headers."""
        [link] = json.loads(run("ip", "-netns", self._namespace, "-json", "-statistics", "link", "show", "eth0"))
        return link["stats64"]["rx"]["bytes"], link["stats64"]["tx"]["bytes"]


@contextmanager
def network(count: int) -> Iterator[list[Machine]]:
    """Make `count` machines that reach each other; leave nothing of them in the end.

    Raises ScriptError if this process may not make network namespaces.
    """
    if not can_make():
        raise ScriptError("machines are network namespaces here, which need root and iproute2; run it as root")
    prefix = f"es{os.getpid()}-{next(_numbers)}"
    switch, machines = f"{prefix}-switch", list[Machine]()
    namespaces = [switch, *(f"{prefix}-{i}" for i in range(1, count + 1))]
    try:
        for namespace in namespaces:
            run("ip", "netns", "add", namespace)
            run("ip", "-netns", namespace, "link", "set", "lo", "up")
        run("ip", "-netns", switch, "link", "add", "bridge", "type", "bridge")
        run("ip", "-netns", switch, "link", "set", "bridge", "up")
        for number, namespace in enumerate(namespaces[1:], 1):
            here = ("ip", "-netns", namespace)
            port, address = f"port{number}", f"{NETWORK}.{number}"
            run(*here, "link", "add", "eth0", "type", "veth", "peer", "name", port, "netns", switch)
            run("ip", "-netns", switch, "link", "set", port, "master", "bridge", "up")
            run(*here, "address", "add", f"{address}/24", "dev", "eth0")
            run(*here, "link", "set", "eth0", "up")
            machines.append(Machine(namespace, address))
        yield machines
    finally:
        for machine in machines:
            machine.kill()
        for namespace in namespaces:
            subprocess.run(["ip", "netns", "delete", namespace], capture_output=True)  # noqa: S603, S607
