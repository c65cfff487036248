"""Sends inputs to a server, and measures what each costs: a bystander's wait, CPU time, and memory."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, astuple, dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import psutil

from deployments.ingress.protocol import EVERY
from deployments.repository.repository import DEFAULT_ROOT
from ensemble_models.results import Table
from ensemble_serving.transports import Request, once
from lab.benchmark.systems import GRPC_PORT, HTTP_PORT, OURS, Running, running
from lab.benchmark.workloads import CIFAR_SIZE, Placement, Workload
from lab.faults.fuzz.inputs import Input
from lab.faults.fuzz.sending import Sender
from lab.faults.fuzz.watching import Bystander, Memory
from scripts.keys import add
from scripts.shipped import shipped

HOST = "127.0.0.1"
# What an input that is sent alone may cost: a bystander's wait, and memory per byte sent and besides.
MOST_WAIT_S = 0.25
WITH_KEY, WITHOUT_KEY = (8, 64e6), (2, 16e6)
# An input that breaks a limit by chance, because other work had the machine, does not break it every time.
ATTEMPTS = 3
# How long the server is watched after an answer, and at rest.
AFTER_S, REST_S = 0.15, 5.0
# The memory of a request is given back after it, so that the next one's is seen as growth.
GIVES_BACK = {"MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "131072"}
# The server's processes whose end is a failure; a decoding process is replaced after an image has ended it.
VITAL = ("ray::", "haproxy", "raylet", "gcs_server")
FAMILIES = (
    "what is sent",
    "inputs",
    "answered",
    "failures",
    "slowest, s",
    "bystander waits, s",
    "CPU, s",
    "memory, MB",
    "share of the limit",
    "number of the worst",
)


@dataclass(frozen=True)
class Cost:
    """What became of an input, and what it cost the server; of several at once, all have the cost of all.

    Attributes:
        number: of the input.
        where: the route or gRPC method.
        what: is hostile or large about it.
        with_key: whether it showed a key.
        size: bytes on the wire.
        status: what it was answered.
        seconds: until then.
        failure: what the server did wrong; None for nothing.
        alone: whether nothing else was sent meanwhile.
        wait_s: the longest that the bystander waited.
        cpu_s: of all of the server's processes, more than at rest.
        memory: the growth of its peak, bytes.
    """

    number: int
    where: str
    what: str
    with_key: bool
    size: int
    status: str
    seconds: float
    failure: str | None = None
    alone: bool = True
    wait_s: float = 0.0
    cpu_s: float = 0.0
    memory: int = 0

    @property
    def excess(self) -> float:
        """The cost as a share of its limit, in time or memory; above 1 it breaks the limit. Only that of one alone."""
        per_byte, besides = WITH_KEY if self.with_key else WITHOUT_KEY
        share = max(self.wait_s / MOST_WAIT_S, self.memory / (per_byte * self.size + besides))
        return share if self.alone else 0.0

    @property
    def is_finding(self) -> bool:
        """Whether a person must look at it."""
        return self.failure is not None or self.excess > 1

    def record(self) -> dict[str, Any]:
        """Return what JSON holds of it."""
        return {**asdict(self), "share_of_limit": self.excess, "finding": self.is_finding}


@dataclass
class Runner:
    """Sends inputs to a server that a bystander uses.

    Attributes:
        sender: sends the inputs.
        bystander: uses the server meanwhile.
        server: whose CPU time and processes are watched; None to watch none.
        memory: likewise.
    """

    sender: Sender
    bystander: Bystander
    server: Running | None = None
    memory: Memory | None = None
    _vital: Mapping[int, str] = field(default_factory=dict)
    _rest: float = 0.0

    def look_at_rest(self) -> None:
        """Measure what the server uses without inputs."""
        assert self.server is not None
        self._vital = vital(self.server)
        used, began = self.server.cpu_s(), time.perf_counter()
        time.sleep(REST_S)
        self._rest = (self.server.cpu_s() - used) / (time.perf_counter() - began)

    def cost(self, number: int, sent: Input) -> Cost:
        """Send an input alone; of what breaks a limit, return the least cost of some attempts."""
        [found] = self.volley({number: sent})
        for _ in range(ATTEMPTS - 1):
            if not found.is_finding:
                break
            [again] = self.volley({number: sent})
            found = min(found, again, key=lambda cost: (cost.failure is not None, cost.excess))
        return found

    def volley(self, inputs: Mapping[int, Input]) -> list[Cost]:
        """Send inputs at the same time, by their numbers, and wait for all answers."""
        return asyncio.run(self._volley(inputs))

    async def _volley(self, inputs: Mapping[int, Input]) -> list[Cost]:
        before, used, began = self.memory.begin() if self.memory else 0, self._used(), time.perf_counter()
        outcomes = await asyncio.gather(*map(self.sender.send, inputs.values()))
        await asyncio.sleep(AFTER_S)
        wait_s, wrong = await asyncio.to_thread(self.bystander.report, began)
        shared: dict[str, Any] = {
            "alone": len(inputs) == 1,
            "wait_s": wait_s,
            "cpu_s": max(0.0, self._used() - used - self._rest * (time.perf_counter() - began)),
            "memory": max(0, self.memory.peak - before) if self.memory else 0,
        }
        costs = [
            Cost(number, sent.where, sent.what, sent.with_key, sent.size, *astuple(outcome), **shared)
            for (number, sent), outcome in zip(inputs.items(), outcomes, strict=True)
        ]
        if failure := self._lost() or (wrong and f"the bystander was answered {wrong}"):
            costs[-1] = replace(costs[-1], failure=failure)
        return costs

    def _used(self) -> float:
        return self.server.cpu_s() if self.server else 0.0

    def _lost(self) -> str:
        """Return which processes have ended that must not."""
        if self.server is None:
            return ""
        now = vital(self.server)
        lost = [name for pid, name in self._vital.items() if pid not in now]
        self._vital = now
        return f"processes ended: {', '.join(lost)}" if lost else ""


def vital(server: Running) -> dict[int, str]:
    """Return the names of the server's processes that must not end, by their id."""
    found = {}
    for process in server.processes():
        with suppress(psutil.Error):
            name = process.name()
            if name.startswith(VITAL) and "IDLE" not in name:
                found[process.pid] = name
    return found


def document(url: str) -> dict[str, Any]:
    """Return the OpenAPI document that a server publishes."""
    found: dict[str, Any] = msgspec.json.decode(once(url, Request("/openapi.json", method="GET")).body)
    return found


@contextmanager
def fuzzed(placement: Placement, folder: Path) -> Iterator[tuple[Runner, str]]:
    """Start a server with every protocol and with keys, and give its runner and a key that may load members.

    Args:
        placement: of every node.
        folder: for the file of keys.

    Raises:
        ScriptError: the server did not start.
    """
    photograph, keys = shipped("tests/cat.jpg"), folder / "keys"
    key, other = add(keys, "fuzzer", None), add(keys, "bystander", None)

    def edit(config: dict[str, Any]) -> None:
        [application] = config["applications"]
        for options in application["deployments"]:
            # A replica that comes or goes by itself would look like one that died.
            options.pop("autoscaling_config", None)
            options["num_replicas"] = 1
        config["grpc_options"]["grpc_servicer_functions"] = [EVERY]
        args = application["args"]
        args["feedback"] = {}
        args["access"] = {"keys": str(keys), "operators": ["fuzzer"]}
        args["ingress"] = {**args.get("ingress", {}), "shared_memory_prefix": "fuzz"}

    load = Workload("embedded", DEFAULT_ROOT, 2, CIFAR_SIZE, (photograph,), None)
    with (
        running(OURS[placement], load, edit, GIVES_BACK) as server,
        Bystander(f"http://{HOST}:{HTTP_PORT}", photograph.read_bytes(), other) as bystander,
    ):
        memory = Memory(lambda: [process.pid for process in server.processes()])
        memory.start()
        runner = Runner(Sender(HOST, HTTP_PORT, GRPC_PORT), bystander, server, memory)
        runner.look_at_rest()
        try:
            yield runner, key
        finally:
            memory.stop()


def families(costs: Sequence[Cost]) -> Table:
    """Return a line for each family of inputs: how often each status was seen, and the worst of each measure."""
    groups: dict[str, list[Cost]] = defaultdict(list)
    for cost in sorted(costs, key=lambda cost: cost.what):
        groups[cost.what.partition(":")[0]].append(cost)
    rows = []
    for family, group in groups.items():
        statuses = Counter(cost.status for cost in group).most_common()
        worst = max(group, key=lambda cost: (cost.failure is not None, cost.excess))
        rows.append(
            [
                family,
                f"{len(group):,}",
                ", ".join(f"{status} ({count:,})" for status, count in statuses),
                f"{sum(cost.failure is not None for cost in group):,}",
                f"{max(cost.seconds for cost in group):.1f}",
                f"{max(cost.wait_s for cost in group):.2f}",
                f"{max(cost.cpu_s for cost in group):.2f}",
                f"{max(cost.memory for cost in group) / 1e6:,.0f}",
                f"{worst.excess:.2f}",
                str(worst.number),
            ]
        )
    return Table(FAMILIES, rows, words=(0, 2))
