"""Sends inputs to a server, and measures what each costs: a bystander's wait, CPU time, and memory."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import msgspec
import numpy as np
import psutil

from deployments.ingress.protocol import EVERY
from deployments.repository.repository import DEFAULT_ROOT
from ensemble_capacity.load.generator import Generator
from ensemble_capacity.load.load import Arrivals, Target
from ensemble_capacity.load.protocols import Classify
from ensemble_capacity.load.records import RIGHT, Records, latency_ms, ok, outcome
from ensemble_serving.transports import Request, once
from lab.benchmark.systems import GRPC_PORT, HTTP_PORT, OURS, Running, running
from lab.benchmark.workloads import CIFAR_SIZE, Workload
from lab.faults.fuzz.inputs import Input
from lab.faults.fuzz.sending import Sender
from lab.rows import Row, Rows
from scripts.errors import ScriptError
from scripts.keys import add
from scripts.shipped import shipped

HOST = "127.0.0.1"
URL = f"http://{HOST}:{HTTP_PORT}"
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
# The bystander's patience is longer than the server's own deadline.
ASK_EVERY_S, PATIENCE_S, UNAVAILABLE = 0.05, 60.0, 503
# How often memory is read, and new processes are looked for, such as one that decodes in another's place.
READ_EVERY_S, LOOK_EVERY_S = 0.01, 0.5
PAGE = os.sysconf("SC_PAGE_SIZE")


class Bystander:
    """A client that sends an image every 50 ms while it is entered; the first answer is taken as the right one."""

    def __init__(self, url: str, image: bytes, key: str = "") -> None:
        """Ask for the right label, again while the server refuses; raises ScriptError if it does for too long."""
        request = Request("/classify", image, (("authorization", f"Bearer {key}"),) if key else ())
        give_up = time.monotonic() + PATIENCE_S
        while not (response := once(url, request, timeout_s=PATIENCE_S)).ok:
            if time.monotonic() > give_up:
                raise ScriptError(f"the bystander was answered {response.status}: {response.body[:200]!r}")
            time.sleep(ASK_EVERY_S)
        label = msgspec.json.decode(response.body)["label"]
        target = Target(url, Classify(), (image,), (label,), key=key, timeout_s=PATIENCE_S)
        self._generator = Generator(target, Arrivals(1 / ASK_EVERY_S, "constant"))

    def __enter__(self) -> Self:
        """Begin to ask."""
        self._generator.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        """Stop asking."""
        self._generator.__exit__(*error)

    @property
    def answers(self) -> int:
        """The number of requests that are over."""
        return self._generator.count

    def report(self, since: float) -> tuple[float, str]:
        """Return the longest wait in seconds, and a wrong answer if any, of the requests that ended after a time.

        A refusal (503) is not wrong. Requests that are due by now are waited for.
        """
        until = time.perf_counter()
        due = int((until - self._generator.began) / ASK_EVERY_S) - 1
        while np.count_nonzero((found := self._generator.records())["due"] < until) < due and not self._generator.ended:
            time.sleep(READ_EVERY_S)
        return judged(found[found["done"] > since])


def judged(found: Records) -> tuple[float, str]:
    """Return the longest wait, seconds, and what was wrong with an answer; empty for nothing."""
    wrong = found[~(ok(found) & (found["flags"] & RIGHT > 0)) & (found["status"] != UNAVAILABLE)]
    longest_s = float(latency_ms(found).max()) / 1000 if len(found) else 0.0
    return longest_s, f"{outcome(int(wrong[0]['status']))}, or another label" if len(wrong) else ""


def private_bytes(pid: int) -> int:
    """Return a process' resident memory but for what it may share; 0 if it is gone. This takes some microseconds."""
    with suppress(OSError, ValueError), open(f"/proc/{pid}/statm", encoding="ascii") as file:
        _, resident, shared, *_ = map(int, file.read().split())
        return (resident - shared) * PAGE
    return 0


class Memory(threading.Thread):
    """Reads the memory of a server's processes a hundred times per second while it is entered.

    Attributes:
        peak: the most since `begin`, bytes.
    """

    def __init__(self, pids: Callable[[], Iterable[int]]) -> None:
        """Set what lists the server's processes."""
        super().__init__(name="memory", daemon=True)
        self._pids, self._over, self._known = pids, threading.Event(), list(pids())
        self.peak = 0

    def begin(self) -> int:
        """Return the memory now, from which on the peak counts, bytes."""
        self.peak = now = sum(map(private_bytes, self._known))
        return now

    def run(self) -> None:
        """Read until the end."""
        looked = time.monotonic()
        while not self._over.wait(READ_EVERY_S):
            if time.monotonic() - looked > LOOK_EVERY_S:
                self._known, looked = list(self._pids()), time.monotonic()
            self.peak = max(self.peak, sum(map(private_bytes, self._known)))

    def __enter__(self) -> Self:
        """Begin to read."""
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End the watch."""
        self._over.set()
        self.join()


def share_of_limit(sent: Input, wait_s: float, memory: int) -> float:
    """Return what an input cost as a share of its limit, in time or memory; above 1 it breaks the limit."""
    per_byte, besides = WITH_KEY if sent.with_key else WITHOUT_KEY
    return max(wait_s / MOST_WAIT_S, memory / (per_byte * sent.size + besides))


def badness(row: Row) -> tuple[bool, float]:
    """Return what orders rows of `Runner`, the worst last."""
    return row["failure"] is not None, row["share_of_limit"]


@dataclass
class Runner:
    """Sends inputs to a server that a bystander uses.

    A row is what became of an input: its `number`, `where`, `what`, `with_key` and `size`, and the `status`, `seconds`
    and `failure` of `Outcome`. All inputs that were sent at once have one `wait_s`, the bystander's longest wait, one
    `cpu_s`, the CPU time of the server's processes above the time at rest, and one `memory`, the growth of its peak in
    bytes. A `finding` failed, or was sent alone and broke its limit.

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
        self._lost()
        used, began = self._used(), time.perf_counter()
        time.sleep(REST_S)
        self._rest = (self._used() - used) / (time.perf_counter() - began)

    def alone(self, number: int, sent: Input) -> Row:
        """Send an input alone; of what breaks a limit, return the least row of some attempts."""
        [found] = self.volley({number: sent})
        for _ in range(ATTEMPTS - 1):
            if found["finding"]:
                found = min(found, *self.volley({number: sent}), key=badness)
        return found

    def volley(self, inputs: Mapping[int, Input]) -> Rows:
        """Send inputs at the same time, by their numbers, and wait for all answers."""
        return asyncio.run(self._volley(inputs))

    async def _volley(self, inputs: Mapping[int, Input]) -> Rows:
        before, used, began = self.memory.begin() if self.memory else 0, self._used(), time.perf_counter()
        outcomes = await asyncio.gather(*map(self.sender.send, inputs.values()))
        await asyncio.sleep(AFTER_S)
        wait_s, wrong = await asyncio.to_thread(self.bystander.report, began)
        cpu_s = max(0.0, self._used() - used - self._rest * (time.perf_counter() - began))
        memory = max(0, self.memory.peak - before) if self.memory else 0
        rows: Rows = []
        for (number, sent), answer in zip(inputs.items(), outcomes, strict=True):
            row = {"number": number, "where": sent.where, "what": sent.what, "with_key": sent.with_key}
            share = share_of_limit(sent, wait_s, memory) if len(inputs) == 1 else 0.0
            costs = {"wait_s": wait_s, "cpu_s": cpu_s, "memory": memory, "share_of_limit": share}
            rows.append({**row, "size": sent.size, **answer._asdict(), **costs})
        if failure := self._lost() or (wrong and f"the bystander was answered {wrong}"):
            rows[-1]["failure"] = failure
        return [{**row, "finding": badness(row) > (False, 1)} for row in rows]

    def _used(self) -> float:
        return self.server.cpu_s() if self.server else 0.0

    def _lost(self) -> str:
        """Return which processes have ended that must not."""
        before, self._vital = self._vital, vital(self.server) if self.server else {}
        lost = [name for pid, name in before.items() if pid not in self._vital]
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


def document(url: str) -> Any:
    """Return the OpenAPI document that a server publishes."""
    return msgspec.json.decode(once(url, Request("/openapi.json", method="GET")).body)


@contextmanager
def fuzzed(folder: Path) -> Iterator[tuple[Runner, str]]:
    """Start a server with every protocol and with keys, and give its runner and a key that may load members.

    Args:
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
        running(OURS["separate"], load, edit, GIVES_BACK) as server,
        Bystander(URL, photograph.read_bytes(), other) as bystander,
        Memory(lambda: [process.pid for process in server.processes()]) as memory,
    ):
        runner = Runner(Sender(HOST, HTTP_PORT, GRPC_PORT), bystander, server, memory)
        runner.look_at_rest()
        yield runner, key
