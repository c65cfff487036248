"""Sends inputs to a server, and measures the cost of each: a bystander's wait, and memory."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import psutil

from deployments.ingress.protocol import EVERY
from deployments.repository.repository import DEFAULT_ROOT
from ensemble_capacity.load.generator import Generator
from ensemble_capacity.load.load import Target
from ensemble_capacity.load.protocols import Classify
from ensemble_capacity.load.records import RIGHT, Records, latency_ms, ok, outcome
from ensemble_serving import Client
from lab.benchmark.systems import GRPC_PORT, HTTP_PORT, OURS, Running, running
from lab.benchmark.workloads import Workload, changed
from lab.faults.fuzz.requests import Input
from lab.faults.steady import Steady
from lab.rows import Row, Rows
from scripts.keys import add
from scripts.shipped import shipped

HOST = "127.0.0.1"
URL = f"http://{HOST}:{HTTP_PORT}"
# The server's deadline is 30 s, and so is its patience with a connection on which nothing comes; and some grace.
ANSWER_S = 35.0
MOST_READ = 4 * 1024 * 1024
# The ingress has seen the beginning of a request after this time.
SEEN_S = 0.1
STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})")
RETRY_AFTER = re.compile(rb"\r\nretry-after: *\d", re.IGNORECASE)
# Statuses by which the server says that itself failed, and not the caller.
GRPC_FAULTS = frozenset({"UNKNOWN", "INTERNAL", "DATA_LOSS", "ABORTED", "UNAVAILABLE", "DEADLINE_EXCEEDED"})
# The client has no limits of its own, makes no second attempt, and shares no connection.
CHANNEL = (("grpc.max_send_message_length", -1), ("grpc.enable_retries", 0), ("grpc.use_local_subchannel_pool", 1))
# What an input that is sent alone may cost: a bystander's wait, and memory per byte sent and besides.
MOST_WAIT_S = 0.25
WITH_KEY, WITHOUT_KEY = (8, 64e6), (2, 16e6)
# An input that breaks a limit by chance, because other work had the machine, does not break it every time.
ATTEMPTS = 3
# How long the server is watched after an answer.
AFTER_S = 0.15
# The memory of a request is given back after it, so that the next one's is seen as growth.
GIVES_BACK = {"MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "131072"}
# The server's processes whose end is a failure; a decoding process is replaced after an image has ended it.
VITAL = ("ray::", "haproxy", "raylet", "gcs_server")
# The bystander's patience is longer than the server's own deadline.
ASK_EVERY_S, PATIENCE_S, UNAVAILABLE = 0.05, 60.0, 503


@dataclass(frozen=True)
class Sender:
    """Sends inputs to a server, each on a connection of its own, because some inputs end their connection."""

    host: str
    http_port: int
    grpc_port: int

    async def send(self, sent: Input) -> Row:
        """Send an input; return the `status` of its answer, or how its connection ended, `seconds`, and `failure`."""
        began = time.monotonic()
        try:
            async with asyncio.timeout(ANSWER_S):
                status, failure = await (self._by_grpc(sent) if sent.is_grpc else self._by_http(sent))
        except TimeoutError:
            status, failure = "hangs", f"no answer in {ANSWER_S:.0f} s"
        except ConnectionRefusedError:
            status, failure = "refused", "the connection was refused"
        return {"status": status, "seconds": time.monotonic() - began, "failure": failure}

    async def _by_grpc(self, sent: Input) -> tuple[str, str]:
        async with grpc.aio.insecure_channel(f"{self.host}:{self.grpc_port}", options=CHANNEL) as channel:
            # A stream, too, is answered by its first message.
            method: Any = channel.unary_stream(sent.where)
            metadata = (("authorization", f"Bearer {sent.key}"),) if sent.key else ()
            compression = grpc.Compression.Gzip if sent.packed else None
            try:
                await method(sent.content, metadata=metadata, timeout=ANSWER_S, compression=compression).read()
            except grpc.aio.AioRpcError as err:
                name = err.code().name
                return name, f"{name} {err.details() or ''}" if name in GRPC_FAULTS else ""
            return "OK", ""

    async def _by_http(self, sent: Input) -> tuple[str, str]:
        reader, writer = await asyncio.open_connection(self.host, self.http_port)
        answer = bytearray()
        try:
            with suppress(OSError):
                writer.write(sent.content)
                if not sent.whole:
                    # The server need not wait for the rest. HAProxy drops what the ingress has not begun.
                    await asyncio.sleep(SEEN_S)
                    writer.write_eof()
                while len(answer) < MOST_READ and (more := await reader.read(65536)):
                    answer += more
        finally:
            writer.close()
        if (found := STATUS.match(answer)) is None:
            return "closed", "the connection was closed without an answer" if sent.whole else ""
        status = int(found[1])
        is_refusal = status == UNAVAILABLE and RETRY_AFTER.search(answer) is not None
        is_fault = status >= 500 and status != 505 and not is_refusal
        return str(status), f"{status} {bytes(answer[-300:])!r}" if is_fault else ""


class Bystander(Generator):
    """A client that sends an image every 50 ms while it is entered; the first answer is taken as the right one."""

    def __init__(self, url: str, image: bytes, key: str = "") -> None:
        """Request the right label; raises EnsembleError or NoResponse if the server does not answer."""
        label = asyncio.run(_label(url, image, key))
        target = Target(url, Classify(), (image,), (label,), key=key, timeout_s=PATIENCE_S)
        super().__init__(target, Steady(1 / ASK_EVERY_S))

    def report(self, since: float) -> tuple[float, str]:
        """Return the longest wait in seconds, and a wrong answer if any, of the requests that ended after a time.

        A refusal (503) is not wrong. Requests that are due by now are waited for.
        """
        until = time.perf_counter()
        due = int((until - self.began) / ASK_EVERY_S) - 1
        while np.count_nonzero((found := self.records())["due"] < until) < due and not self.ended:
            time.sleep(AFTER_S / 10)
        return judged(found[found["done"] > since])


async def _label(url: str, image: bytes, key: str) -> str:
    async with Client(url, key=key or None) as client:
        return (await client.classify(image)).label


def judged(found: Records) -> tuple[float, str]:
    """Return the longest wait, seconds, and the fault of an answer; empty for none."""
    wrong = found[~(ok(found) & (found["flags"] & RIGHT > 0)) & (found["status"] != UNAVAILABLE)]
    longest_s = float(latency_ms(found).max()) / 1000 if len(found) else 0.0
    return longest_s, f"{outcome(int(wrong[0]['status']))}, or another label" if len(wrong) else ""


def peak(pid: int, *, reset: bool = False) -> int:
    """Return the most memory that a process had since its peak was reset, bytes; 0 for a process that has ended."""
    if reset:
        with suppress(OSError):
            Path(f"/proc/{pid}/clear_refs").write_text("5", encoding="ascii")
    with suppress(OSError):
        found = re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{pid}/status").read_text(encoding="utf-8"))
        return 1024 * int(found[1]) if found else 0
    return 0


def share_of_limit(sent: Input, wait_s: float, memory: int) -> float:
    """Return what an input cost as a share of its limit, in time or memory; above 1 it breaks the limit."""
    per_byte, besides = WITH_KEY if sent.key else WITHOUT_KEY
    return max(wait_s / MOST_WAIT_S, memory / (per_byte * sent.size + besides))


def badness(row: Row) -> tuple[bool, float]:
    """Return what orders rows of `Runner`, the worst last."""
    return bool(row["failure"]), row["share_of_limit"]


@dataclass
class Runner:
    """Sends inputs to a server that a bystander uses, and watches its processes if the server is given.

    A row has an input's `number`, `with_key`, `where`, `family`, `kind` and `size`, and what `Sender.send` returns. All
    inputs that were sent at once have one `wait_s`, the bystander's longest wait, and one `memory_mb`, the growth of
    the processes' peaks. A `finding` failed, or was sent alone and broke its limit.
    """

    sender: Sender
    bystander: Bystander
    server: Running | None = None
    _vital: dict[int, str] = field(default_factory=dict)

    def alone(self, number: int, sent: Input) -> Row:
        """Send an input alone; after a broken limit, return the least row of some attempts."""
        [found] = self.volley({number: sent})
        for _ in range(ATTEMPTS - 1):
            if found["finding"] and not found["failure"]:
                found = min(found, *self.volley({number: sent}), key=badness)
        return found

    def volley(self, inputs: Mapping[int, Input]) -> Rows:
        """Send inputs at the same time, by their numbers, and wait for all answers."""
        pids = [process.pid for process in self.server.processes()] if self.server else []
        before, began = {pid: peak(pid, reset=True) for pid in pids}, time.perf_counter()
        answers = asyncio.run(self._answers(inputs))
        time.sleep(AFTER_S)
        wait_s, wrong = self.bystander.report(began)
        memory = sum(max(0, peak(pid) - least) for pid, least in before.items())
        rows: Rows = []
        for (number, sent), answer in zip(inputs.items(), answers, strict=True):
            share = share_of_limit(sent, wait_s, memory) if len(inputs) == 1 else 0.0
            described = {name: getattr(sent, name) for name in ("where", "family", "kind", "size")}
            costs = {"wait_s": wait_s, "memory_mb": memory / 1e6, "share_of_limit": share}
            rows.append({"number": number, "with_key": bool(sent.key), **described, **answer, **costs})
        if failure := self._lost() or (wrong and f"the bystander was answered {wrong}"):
            rows[-1]["failure"] = failure
        return [{**row, "finding": badness(row) > (False, 1)} for row in rows]

    async def _answers(self, inputs: Mapping[int, Input]) -> Rows:
        return await asyncio.gather(*map(self.sender.send, inputs.values()))

    def _lost(self) -> str:
        """Name the processes that must not end, and have ended."""
        before, self._vital = self._vital, vital(self.server) if self.server else {}
        lost = [name for pid, name in before.items() if pid not in self._vital]
        return f"processes ended: {', '.join(lost)}" if lost else ""


def vital(server: Running) -> dict[int, str]:
    """Return the name of each process of the server that must not end, by its id."""
    found = {}
    for process in server.processes():
        with suppress(psutil.Error):
            name = process.name()
            if name.startswith(VITAL) and "IDLE" not in name:
                found[process.pid] = name
    return found


@contextmanager
def fuzzed(folder: Path) -> Iterator[tuple[Runner, str]]:
    """Start a server with every protocol and with keys; yield its runner and a key that may load members.

    The folder is for the file of keys. Raises ScriptError if the server did not start.
    """
    photograph, keys = shipped("tests/cat.jpg"), folder / "keys"
    key, other = add(keys, "fuzzer", None), add(keys, "bystander", None)

    # A replica that comes or goes by itself would look like one that died.
    options = {"autoscaling_config": None, "num_replicas": 1}
    access = {"keys": str(keys), "operators": ["fuzzer"]}
    change = changed({"feedback": {}, "access": access, "ingress": {"shared_memory_prefix": "fuzz"}}, None, options)

    def edit(config: dict[str, Any]) -> None:
        change(config)
        config["grpc_options"]["grpc_servicer_functions"] = [EVERY]

    load = Workload("embedded", DEFAULT_ROOT, 2, (photograph,), None)
    with (
        running(OURS["separate"], load, edit, GIVES_BACK) as server,
        Bystander(URL, photograph.read_bytes(), other) as bystander,
    ):
        yield Runner(Sender(HOST, HTTP_PORT, GRPC_PORT), bystander, server, vital(server)), key
