"""Sends a request to a server, and measures what it cost: others' wait, CPU, memory."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec

from deployments.repository.repository import DEFAULT_ROOT
from ensemble_serving.transports import Request, once
from lab.benchmark.systems import GRPC_PORT, HTTP_PORT, OURS, Running, running
from lab.benchmark.workloads import CIFAR_SIZE, Placement, Workload
from lab.faults.amplification.bystander import Bystander
from lab.faults.amplification.corpus import Costly
from lab.faults.amplification.memory import Memory
from lab.faults.hostile.campaign import one_of_each, vital
from lab.faults.hostile.sending import Sender
from scripts.keys import add
from scripts.shipped import shipped

HOST = "127.0.0.1"
# What a request may cost: the longest wait of a bystander, and memory, by byte sent and besides.
MOST_WAIT_S = 0.25
WITH_KEY, WITHOUT_KEY = (8, 64e6), (2, 16e6)
ADDED = ("open_inference", "tensorflow_serving", "health", "feedback")
# How long is looked on after the answer, and at a server at rest.
AFTER_S, REST_S = 0.15, 5.0
# What one request took is given back when it is done, so that what the next takes is seen as growth.
GIVES_BACK = {"MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "131072"}


@dataclass(frozen=True)
class Cost:
    """What a request cost.

    Attributes:
        index: its number.
        where: the route or method.
        what: was large about it.
        with_key: whether it showed a key.
        size: bytes on the wire.
        status: what it was answered.
        seconds: until then.
        wait_s: the longest that a bystander waited.
        cpu_s: of all of the server's processes, more than at rest.
        memory: the growth of its peak, bytes.
        failure: what the server did wrong; None for nothing.
    """

    index: int
    where: str
    what: str
    with_key: bool
    size: int
    status: str
    seconds: float
    wait_s: float
    cpu_s: float
    memory: int
    failure: str | None = None

    @property
    def most_memory(self) -> float:
        """What its memory may be, bytes."""
        per_byte, besides = WITH_KEY if self.with_key else WITHOUT_KEY
        return per_byte * self.size + besides

    @property
    def excess(self) -> float:
        """How much of what it may cost it did cost, in time or memory; more than 1 breaks a bar."""
        return max(self.wait_s / MOST_WAIT_S, self.memory / self.most_memory)

    @property
    def is_finding(self) -> bool:
        """Whether it is to be looked at."""
        return self.failure is not None or self.excess > 1

    def record(self) -> dict[str, Any]:
        """What JSON holds of it."""
        each = max(1, self.size)
        more = {"wait_s_per_byte": self.wait_s / each, "cpu_s_per_byte": self.cpu_s / each}
        return asdict(self) | more | {"memory_per_byte": self.memory / each, "finding": self.is_finding}


class Measuring:
    """A server that requests are sent to, one after the other."""

    def __init__(self, server: Running, bystander: Bystander, memory: Memory) -> None:
        """Look at the server at rest first."""
        self._server, self._bystander, self._memory = server, bystander, memory
        self._sender = Sender(HOST, HTTP_PORT, GRPC_PORT)
        self._vital = vital(server)
        self._rest = 0.0
        used, began = server.cpu_s(), time.monotonic()
        time.sleep(REST_S)
        self._rest = self._used(used) / (time.monotonic() - began)

    def document(self) -> dict[str, Any]:
        """The OpenAPI document that it publishes."""
        response = once(f"http://{HOST}:{HTTP_PORT}", Request("/openapi.json", method="GET"))
        document: dict[str, Any] = msgspec.json.decode(response.body)
        return document

    def cost(self, index: int, asked: Costly) -> Cost:
        """What a request costs."""
        self._bystander.told()
        before, used, began = self._memory.begin(), self._server.cpu_s(), time.monotonic()
        outcome = asyncio.run(self._sender.send(asked.sent))
        time.sleep(AFTER_S)
        wait_s, wrong = self._bystander.told()
        cpu_s = self._used(used) - self._rest * (time.monotonic() - began)
        failure = outcome.failure or (f"a bystander was answered {wrong}" if wrong else None)
        return Cost(
            index=index,
            where=asked.where,
            what=asked.what,
            with_key=asked.with_key,
            size=asked.size,
            status=outcome.status,
            seconds=outcome.seconds,
            wait_s=wait_s,
            cpu_s=max(0.0, cpu_s),
            memory=max(0, self._memory.peak - before),
            failure=self._lost() or failure,
        )

    def _used(self, before: float) -> float:
        return self._server.cpu_s() - before

    def _lost(self) -> str | None:
        """Which processes have ended that must not."""
        now = vital(self._server)
        lost = [name for pid, name in self._vital.items() if pid not in now]
        self._vital = now
        return f"processes ended: {', '.join(lost)}" if lost else None


@contextmanager
def measuring(placement: Placement, folder: Path) -> Iterator[tuple[Measuring, str]]:
    """A server with keys, whose file is in the folder, and the key that it knows, which may load and unload members.

    Raises:
        ScriptError: it did not start.
    """
    photograph = shipped("tests/cat.jpg")
    keys = folder / "keys"
    key, bystanders = add(keys, "costly", None), add(keys, "bystander", None)

    def edit(config: dict[str, Any]) -> None:
        one_of_each(config)
        args = config["applications"][0]["args"]
        # All that can be asked, also what the shipped configuration leaves out.
        config["grpc_options"]["grpc_servicer_functions"] = [
            f"deployments.protocol.services.add_{each}" for each in ADDED
        ]
        args["feedback"] = {}
        args["access"] = {"keys": str(keys), "operators": ["costly"]}
        args["ingress"] = {**args.get("ingress", {}), "shared_memory_prefix": "amplification"}

    load = Workload("embedded", DEFAULT_ROOT, 2, CIFAR_SIZE, (photograph,), None)
    with (
        running(OURS[placement], load, edit, GIVES_BACK) as server,
        Bystander(HOST, HTTP_PORT, photograph.read_bytes(), bystanders) as bystander,
    ):
        memory = Memory(lambda: [process.pid for process in server.processes()])
        memory.start()
        try:
            yield Measuring(server, bystander, memory), key
        finally:
            memory.stop()
