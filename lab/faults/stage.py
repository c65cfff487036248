"""A server on which a fault is done: started for it alone, with its processes in reach."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import psutil

from ensemble_capacity.load.generator import Generator
from lab.benchmark.systems import HTTP_PORT, OURS, Running, replicas_among, running
from lab.benchmark.workloads import Placement, Workload
from lab.faults.watch import is_whole, watch
from scripts.errors import ScriptError

WHOLE_TIMEOUT_S = 120.0
# Before the fault, and after what it did is over: enough for a few hundred requests.
CALM_S = 3.0


class Stage:
    """What a fault can be done to.

    Attributes:
        url: the server's root.
        dashboard: that of its Ray.
        clients: that load it meanwhile.
        config: its Serve config.
    """

    def __init__(
        self, server: Running, config: dict[str, Any], clients: Generator, nodes: Sequence[psutil.Process]
    ) -> None:
        """Set the server, its configuration, its clients, and the further nodes of its Ray."""
        self._server = server
        self._nodes = nodes
        self.config = config
        self.clients = clients
        self.url = f"http://127.0.0.1:{HTTP_PORT}"
        self.dashboard = server.told("RAY_DASHBOARD_ADDRESS")

    def replicas(self, deployment: str) -> list[psutil.Process]:
        """The processes of a deployment's replicas."""
        return self._server.replicas(deployment) + replicas_among(self._on_nodes(), deployment)

    def kill_a_node(self) -> None:
        """Kill the raylet of one of the further nodes, and wait until all is whole again."""
        raylet = next(process for process in self._on_nodes() if process.name() == "raylet")
        raylet.kill()
        self.until_whole()

    def _on_nodes(self) -> list[psutil.Process]:
        found = []
        for node in self._nodes:
            with suppress(psutil.Error):
                found += node.children(recursive=True)
        return found

    def processes(self, part: str) -> list[psutil.Process]:
        """The server's processes whose name, or first argument, has this in it."""
        found = []
        for process in self._server.processes():
            with suppress(psutil.Error):
                if part in process.name() or part in "".join(process.cmdline()[:1]):
                    found.append(process)
        return found

    def lose_a_replica(self, deployment: str, by: Callable[[psutil.Process], None]) -> None:
        """Kill or freeze one of a deployment's replicas, and wait until all is whole again."""
        before = self.replicas(deployment)
        victim = before[0]
        by(victim)

        def is_replaced() -> bool:
            now = self.replicas(deployment)
            return victim not in now and len(now) == len(before)

        self.until(is_replaced)
        self.until_whole()

    def until(self, check: Callable[[], bool]) -> None:
        """Wait until something holds; raises ScriptError if it does not in `WHOLE_TIMEOUT_S`."""
        give_up = time.monotonic() + WHOLE_TIMEOUT_S
        while not check():
            if time.monotonic() > give_up:
                raise ScriptError(f"the server was not whole again {WHOLE_TIMEOUT_S:.0f} s after the fault")
            time.sleep(0.2)

    def until_whole(self) -> None:
        """Wait until answers lack no member again, and a calm while more."""
        since = time.perf_counter()
        self.until(lambda: is_whole(self.clients.records(), since))
        time.sleep(CALM_S)


@contextmanager
def stage(
    load: Workload, placement: Placement, replicas: Mapping[str, int], clients_at_once: int, nodes: int = 1
) -> Iterator[Stage]:
    """A server with so many replicas of each of these deployments, on so many nodes, under load.

    Raises:
        ScriptError: it did not start.
    """
    content: dict[str, Any] = {}

    def edit(config: dict[str, Any]) -> None:
        for options in config["applications"][0]["deployments"]:
            options.pop("autoscaling_config", None)
            options["num_replicas"] = replicas.get(options["name"], 1)
            options["ray_actor_options"] = {"num_cpus": 0.05}
            if nodes > 1 and options["num_replicas"] == nodes:
                options["max_replicas_per_node"] = 1
        content.update(config)

    with running(OURS[placement], load, edit) as server, _joined(server.told("RAY_ADDRESS"), nodes - 1) as others:
        clients = watch(f"http://127.0.0.1:{HTTP_PORT}", [path.read_bytes() for path in load.images], clients_at_once)
        here = Stage(server, content, clients, others)
        here.until(lambda: all(len(here.replicas(name)) >= count for name, count in replicas.items()))
        with clients:
            time.sleep(CALM_S)
            yield here


@contextmanager
def _joined(address: str, count: int) -> Iterator[list[psutil.Process]]:
    """So many further nodes of a Ray cluster, on this machine."""
    command = [sys.executable, "-m", "lab.second_node", address]
    nodes: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(count):
            # One after the other: two that join at the same moment from one address get in each other's way.
            nodes.append(subprocess.Popen(command, stdout=subprocess.PIPE))  # noqa: S603
            assert nodes[-1].stdout is not None
            if nodes[-1].stdout.readline().strip() != b"joined":
                raise ScriptError("a further node of Ray did not join")
        yield [psutil.Process(node.pid) for node in nodes]
    finally:
        for node in nodes:
            node.send_signal(signal.SIGTERM)
        for node in nodes:
            node.communicate()
