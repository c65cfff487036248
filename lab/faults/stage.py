"""A server on which a fault is done, with its processes in reach; its clients, and what they saw."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import psutil

from ensemble_capacity.load.generator import Generator
from ensemble_capacity.load.load import Closed, Target
from ensemble_capacity.load.protocols import Classify
from ensemble_capacity.load.records import DEGRADED, Records, latency_ms, ok, quantile
from lab.benchmark.systems import HTTP_PORT, OURS, Running, replicas_among, running
from lab.benchmark.workloads import Edit, Placement, Workload
from lab.rows import Row
from scripts.errors import ScriptError

WHOLE_TIMEOUT_S = 120.0
# Before the fault, and after what it did is over: enough for a few hundred requests.
CALM_S = 3.0
# Of each replica: all fit any machine.
RESERVED_CPUS = 0.05
# A client whose request failed waits so long: one that fails at once would count thousands of failures per second.
PAUSE_S = 0.1


def watch(url: str, images: Sequence[bytes], clients: int) -> Generator:
    """Make clients that each send one request after the other, one attempt each, for as long as they are entered."""
    return Generator(Target(url, Classify(), tuple(images)), Closed(clients, pause_s=PAUSE_S))


def is_whole(found: Records, since: float) -> bool:
    """Tell whether every member answered the last request, which was sent after a time."""
    if not len(found):
        return False
    last = found[np.argmax(found["done"])]
    return bool(last["due"] > since and ok(found)[np.argmax(found["done"])] and not last["flags"] & DEGRADED)


def sight(found: Records, watched_from: float, began: float, ended: float, first_failure: str = "") -> Row:
    """Summarize the requests that clients made from `watched_from` on, around a fault; times are `time.perf_counter`'s.

    `degraded` answers lack a member, `dark_s` is the longest time without an answer, and `kept` is the answers per
    second during the fault as a fraction of the rate before.
    """
    answers = found[ok(found)]
    ends = np.sort(answers["done"])
    before = _rate(ends, ends[0] if len(ends) else began, began)
    return {
        "requests": len(found),
        "failed": len(found) - len(answers),
        "degraded": int(np.count_nonzero(answers["flags"] & DEGRADED)),
        "dark_s": float(np.diff(ends, prepend=watched_from).max(initial=0.0)) if len(ends) else float("inf"),
        "p99_ms": quantile(latency_ms(answers), 99),
        "kept": _rate(ends, began, ended) / before if before else float("nan"),
        "first_failure": first_failure,
    }


def _rate(ends: Any, since: float, until: float) -> float:
    """Return the rate per second of the times between two others; not a number if there is no time between."""
    return np.count_nonzero((since < ends) & (ends <= until)) / (until - since) if until > since else float("nan")


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


@dataclass
class Told:
    """The versions in force and the absent parts, as the faults report them."""

    in_force: list[InForce] = field(default_factory=list)
    away: list[Away] = field(default_factory=list)

    @contextmanager
    def gone(self, *parts: str) -> Iterator[None]:
        """Note that parts are away in the block."""
        start = time.perf_counter()
        yield
        self.away += [Away(part, start, time.perf_counter()) for part in parts]

    def loaded(self, member: str, version: int, began: float) -> None:
        """Note that a version replaced the member's other one; both were in force since the loading began."""
        at = next(i for i, span in enumerate(self.in_force) if (span.member, span.end) == (member, float("inf")))
        self.in_force[at] = replace(self.in_force[at], end=time.perf_counter())
        self.in_force.append(InForce(member, version, began))


def part_of(deployment: str) -> str:
    """Name a part of the server: a member by its name in answers, another deployment by its own name."""
    return {"ResNet": "resnet", "DenseNet": "densenet"}.get(deployment, deployment)


class Stage:
    """What a fault can be done to.

    Attributes:
        url: the server's root.
        dashboard: the address of its Ray's dashboard.
        clients: that load it meanwhile.
        config: its Serve config.
        told: the report of the faults.
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
        self.told = Told()

    def replicas(self, deployment: str) -> list[psutil.Process]:
        """Return the processes of a deployment's replicas."""
        return self._server.replicas(deployment) + replicas_among(self._on_nodes(), deployment)

    def kill_a_node(self) -> None:
        """Kill the raylet of one of the further nodes, and wait until all is whole again."""
        raylet = next(process for process in self._on_nodes() if process.name() == "raylet")
        with self.told.gone("node"):
            raylet.kill()
            self.until_whole()

    def _on_nodes(self) -> list[psutil.Process]:
        found = []
        for node in self._nodes:
            with suppress(psutil.Error):
                found += node.children(recursive=True)
        return found

    def processes(self, part: str) -> list[psutil.Process]:
        """Return the server's processes whose name, or first argument, contains `part`."""
        found = []
        for process in self._server.processes():
            with suppress(psutil.Error):
                if part in process.name() or part in "".join(process.cmdline()[:1]):
                    found.append(process)
        return found

    def lose_a_replica(self, deployment: str, by: Callable[[psutil.Process], None]) -> None:
        """Kill or freeze one of a deployment's replicas, and wait until all is whole again."""
        before = self.replicas(deployment)

        def is_replaced() -> bool:
            now = self.replicas(deployment)
            return before[0] not in now and len(now) == len(before)

        with self.told.gone(part_of(deployment)):
            by(before[0])
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
    load: Workload,
    placement: Placement,
    replicas: Mapping[str, int],
    clients_at_once: int,
    nodes: int = 1,
    change: Edit = lambda config: None,
) -> Iterator[Stage]:
    """Start a server under load, with `replicas` of each deployment, on `nodes` nodes, with a changed Serve config.

    Raises ScriptError if it did not start.
    """
    content: dict[str, Any] = {}

    def edit(config: dict[str, Any]) -> None:
        for options in config["applications"][0]["deployments"]:
            options.pop("autoscaling_config", None)
            options["num_replicas"] = replicas.get(options["name"], 1)
            options["ray_actor_options"] = {"num_cpus": RESERVED_CPUS}
            if nodes > 1 and options["num_replicas"] == nodes:
                options["max_replicas_per_node"] = 1
        change(config)
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
    """Start `count` further nodes of a Ray cluster, on this machine."""
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
