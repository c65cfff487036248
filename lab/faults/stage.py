"""A server on which a fault is done, with its processes in reach, under the load of its clients."""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from ensemble_capacity.load.generator import Generator
from ensemble_capacity.load.load import Closed, Target
from ensemble_capacity.load.protocols import Classify
from ensemble_capacity.load.records import DEGRADED, Records, ok
from ensemble_capacity.serving import started
from ensemble_serving.transports import Response
from lab.benchmark.systems import HTTP_PORT, OURS, Running, running
from lab.benchmark.workloads import Edit, Placement, Workload, changed
from lab.faults.campaign import Done
from scripts.errors import ScriptError

URL = f"http://127.0.0.1:{HTTP_PORT}"
WHOLE_TIMEOUT_S, JOIN_TIMEOUT_S = 120.0, 60.0
# Before the fault, and after what it did is over: enough for a few hundred requests.
CALM_S = 3.0
# Of each replica: all fit any machine.
RESERVED_CPUS = 0.05
# A client whose request failed waits so long: one that fails at once would count thousands of failures per second.
PAUSE_S = 0.1
UNCHANGED = changed()


@dataclass(frozen=True)
class InForce:
    """A member's version, and the time in which the version may answer."""

    member: str
    version: int
    start: float = float("-inf")
    end: float = float("inf")


@dataclass(frozen=True)
class Away:
    """A process that was killed or replaced, from then until all answers were whole again."""

    part: str
    start: float
    end: float


@dataclass(frozen=True)
class Fault(Done):
    """A fault, what does it, and the server on which it is done; see `Done`."""

    do: Callable[[Stage], None]
    # How many replicas each deployment has, where that is not one.
    replicas: Mapping[str, int] = field(default_factory=dict)
    placement: Placement = "separate"
    # Of Ray, all on this machine.
    nodes: int = 1
    change: Edit = UNCHANGED


class Stage:
    """A server on which a fault can be done, with its Serve config, its clients, and the further nodes of its Ray.

    Faults report in `in_force` which versions may answer when, and in `away` which processes were away when.
    """

    def __init__(
        self, server: Running, config: dict[str, Any], clients: Generator, nodes: Sequence[psutil.Process]
    ) -> None:
        self._server, self._nodes = server, nodes
        self._deployments = {each["name"] for each in config["applications"][0]["deployments"]}
        self.config, self.clients = config, clients
        self.dashboard = server.told("RAY_DASHBOARD_ADDRESS")
        self.in_force: list[InForce] = []
        self.away: list[Away] = []

    @contextmanager
    def gone(self, *parts: str) -> Iterator[None]:
        """Note that parts are away in the block, and until all answers are whole again; members by their names."""
        start = time.perf_counter()
        yield
        self.until_whole()
        self.away += [Away(NAMES.get(part, part), start, time.perf_counter()) for part in parts]

    def loaded(self, member: str, version: int, began: float) -> None:
        """Note that a version replaced the member's other one; both were in force since the loading began."""
        at = next(i for i, span in enumerate(self.in_force) if (span.member, span.end) == (member, float("inf")))
        self.in_force[at] = replace(self.in_force[at], end=time.perf_counter())
        self.in_force.append(InForce(member, version, began))

    def processes(self, part: str) -> list[psutil.Process]:
        """Return a deployment's replicas, or the processes whose name or first argument has `part`, on all nodes."""
        every = self._server.processes()
        for node in self._nodes:
            with suppress(psutil.Error):
                every += node.children(recursive=True)
        word = f"ServeReplica:ensemble:{part}" if part in self._deployments else part
        found = []
        for process in every:
            with suppress(psutil.Error):
                if word in process.name() or word in "".join(process.cmdline()[:1]):
                    found.append(process)
        return found

    def kill_a_node(self) -> None:
        """Kill the raylet of one of the further nodes, and wait until all is whole again."""
        with self.gone("node"):
            next(each for each in self._nodes[0].children(recursive=True) if each.name() == "raylet").kill()

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


# Members by their deployments, of which answers and versions tell the members.
NAMES = {"ResNet": "resnet", "DenseNet": "densenet"}


def is_whole(found: Records, since: float) -> bool:
    """Tell whether every member answered the last request, which was sent after a time."""
    if not len(found):
        return False
    last = found[[np.argmax(found["done"])]]
    return bool(np.all((last["due"] > since) & ok(last) & (last["flags"] & DEGRADED == 0)))


class Patient(Closed):
    """Clients that pause after a request that failed."""

    async def rest(self, response: Response | None) -> bool:
        """See `Closed.rest`."""
        await asyncio.sleep(PAUSE_S)
        return False


def watch(url: str, images: Sequence[bytes], clients: int) -> Generator:
    """Make clients that each send one request after the other, one attempt each, for as long as they are entered."""
    return Generator(Target(url, Classify(), tuple(images)), Patient(clients))


@contextmanager
def stage(load: Workload, fault: Fault, clients: int) -> Iterator[Stage]:
    """Start the server of a fault, under the load of clients; raise ScriptError if it did not start."""
    content: dict[str, Any] = {}

    def edit(config: dict[str, Any]) -> None:
        for options in config["applications"][0]["deployments"]:
            options.pop("autoscaling_config", None)
            options["num_replicas"] = fault.replicas.get(options["name"], 1)
            options["ray_actor_options"] = {"num_cpus": RESERVED_CPUS}
            if fault.nodes > 1 and options["num_replicas"] == fault.nodes:
                options["max_replicas_per_node"] = 1
        fault.change(config)
        content.update(config)

    with (
        running(OURS[fault.placement], load, edit) as server,
        _joined(server.told("RAY_ADDRESS"), fault.nodes - 1) as others,
    ):
        images = [path.read_bytes() for path in load.images]
        here = Stage(server, content, watch(URL, images, clients), others)
        here.until(lambda: all(len(here.processes(name)) >= count for name, count in fault.replicas.items()))
        with here.clients:
            time.sleep(CALM_S)
            yield here


@contextmanager
def _joined(address: str, count: int) -> Iterator[list[psutil.Process]]:
    """Start `count` further nodes of a Ray cluster, on this machine."""
    command = [sys.executable, "-P", "-m", "lab.second_node", address]
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        nodes = []
        for number in range(count):
            # One after the other: two that join at the same moment from one address get in each other's way.
            log = Path(folder) / str(number)
            node = stack.enter_context(started(command, log, lambda log: b"joined" in log.read_bytes(), JOIN_TIMEOUT_S))
            nodes.append(psutil.Process(node.pid))
        yield nodes
