"""Watches a server while it is loaded: by its own reports, if there are any, and by this machine's counters."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Self
from urllib.parse import quote

import msgspec

from ensemble_capacity.load.load import Target
from ensemble_capacity.load.machine import Energy, Processes, difference
from ensemble_serving.transports import NoResponse, Request, Transport
from ensemble_serving.url import address, parsed

EVERY_S = 0.5
# Of what the server reports of itself; a server that is full may take longer, and is not waited for.
TIMEOUT_S = 5.0
PARTS = ("queue", "compute_input", "compute_infer", "compute_output")


@dataclass(frozen=True)
class Figures:
    """The use of a server between two moments; None and empty where it is not known.

    Attributes:
        seconds: between them.
        cpu_s: of the server's processes by name, seconds.
        memory_mb: likewise, at the end, megabytes.
        joules: of this machine's processors.
        parts_us: of an inference, on average, microseconds: `queue`, `compute_input`, `compute_infer` and
            `compute_output`, as Triton's statistics have them.
        batches: how many batches had so many images.
        queue: by time, seconds of `time.perf_counter`: images that waited, and images in flight.
    """

    seconds: float = 0.0
    cpu_s: dict[str, float] = field(default_factory=dict)
    memory_mb: dict[str, float] = field(default_factory=dict)
    joules: float | None = None
    parts_us: dict[str, float] = field(default_factory=dict)
    batches: dict[int, int] = field(default_factory=dict)
    queue: list[tuple[float, int, int]] = field(default_factory=list)


@dataclass(frozen=True)
class Moment:
    """The counters at a time, seconds of `time.perf_counter`."""

    at: float
    cpu_s: dict[str, float]
    joules: float | None
    statistics: dict[str, Any]


class Server:
    """Watches a server from the beginning of a `with` block to its end, twice a second, in a thread of its own."""

    def __init__(self, target: Target, model: str) -> None:
        """Set the server, and the model whose statistics are read."""
        self._target, self._model = target, model
        host, port = address(parsed(target.url))
        self._processes = Processes.of_port(host, port)
        self._energy: Energy | None = None
        if self._processes is not None:
            with suppress(OSError, ValueError):
                self._energy = Energy()
        self._queue: list[tuple[float, int, int]] = []
        self._replicas: set[str] = set()
        self._loop = asyncio.new_event_loop()

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._run, name="server", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.run_until_complete(self._close())
        self._loop.close()

    def _run(self) -> None:
        self._transport: Transport = replace(self._target, timeout_s=TIMEOUT_S).connect(1)
        self._polling = self._loop.create_task(self._poll())
        self._loop.run_forever()

    async def _close(self) -> None:
        self._polling.cancel()
        await self._transport.close()

    async def _poll(self) -> None:
        """Note the queue that this application reports by `/stats`, if the server is this application."""
        stats = {} if self._target.is_grpc else await self._json("/stats")
        while "queue" in stats or self._queue:
            if "queue" in stats:
                queue = stats["queue"]
                self._replicas.add(stats.get("replica", ""))
                self._queue.append((time.perf_counter(), queue.get("waiting", 0), queue.get("in_flight", 0)))
            await asyncio.sleep(EVERY_S)
            stats = await self._json("/stats")

    async def _json(self, path: str) -> dict[str, Any]:
        """Get the JSON of a path; empty if there is none."""
        with suppress(NoResponse, msgspec.MsgspecError):
            response = await self._transport.send(Request(path, method="GET"))
            if response.ok:
                content = msgspec.json.decode(response.body)
                return content if isinstance(content, dict) else {}
        return {}

    async def _statistics(self) -> dict[str, Any]:
        """Get the model's statistics, as the Open Inference Protocol's extension has them; empty if there are none."""
        if not self._target.is_grpc:
            return await self._json(f"/v2/models/{quote(self._model, safe='')}/stats")
        from google.protobuf.json_format import MessageToDict

        from ensemble_serving.protocol import inference_pb2 as pb

        request = pb.ModelStatisticsRequest(name=self._model)
        path = "/inference.GRPCInferenceService/ModelStatistics"
        with suppress(NoResponse):
            response = await self._transport.send(Request(path, request.SerializeToString()))
            if response.ok:
                message = pb.ModelStatisticsResponse.FromString(response.body)
                return MessageToDict(
                    message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
                )
        return {}

    def moment(self) -> Moment:
        """Read the counters now."""
        pending = asyncio.run_coroutine_threadsafe(self._statistics(), self._loop)
        return Moment(
            time.perf_counter(),
            {} if self._processes is None else self._processes.cpu_s(),
            None if self._energy is None else self._energy.joules(),
            pending.result(),
        )

    def between(self, before: Moment, after: Moment) -> Figures:
        """Compare the counters of two moments, and read the memory that the server has now."""
        parts_us, batches = _compared(before.statistics, after.statistics) if len(self._replicas) < 2 else ({}, {})
        return Figures(
            after.at - before.at,
            difference(after.cpu_s, before.cpu_s),
            {} if self._processes is None else self._processes.memory_mb(),
            None if after.joules is None or before.joules is None else after.joules - before.joules,
            parts_us,
            batches,
            [each for each in self._queue if before.at <= each[0] < after.at],
        )


def _compared(before: dict[str, Any], after: dict[str, Any]) -> tuple[dict[str, float], dict[int, int]]:
    """Calculate the microseconds of each part of an inference, and the sizes of batches; both may be missing."""
    try:
        [first], [last] = before["model_stats"], after["model_stats"]
        counts = [int(each["inference_stats"]["success"]["count"]) for each in (first, last)]
        if counts[1] <= counts[0]:
            return {}, {}
        parts = {}
        for name in PARTS:
            spent = [int(each["inference_stats"][name]["ns"]) for each in (first, last)]
            parts[name] = (spent[1] - spent[0]) / 1000 / (counts[1] - counts[0])
        old, new = (
            {int(size["batch_size"]): int(size["compute_infer"]["count"]) for size in each.get("batch_stats", ())}
            for each in (first, last)
        )
    except (KeyError, TypeError, ValueError):
        return {}, {}
    return parts, {size: count - old.get(size, 0) for size, count in sorted(new.items()) if count > old.get(size, 0)}


def stages_ms(timings: list[str]) -> dict[str, float]:
    """Average the durations that `Server-Timing` headers name, milliseconds, in their order.

    Source: https://www.w3.org/TR/server-timing/
    """
    sums: dict[str, list[float]] = {}
    for header in timings:
        for metric in header.split(","):
            fields = [field.strip() for field in metric.split(";")]
            values = dict(field.partition("=")[::2] for field in fields[1:])
            with suppress(KeyError, ValueError):
                took = float(values["dur"])
                sums.setdefault(values.get("desc", fields[0]).strip('"'), []).append(took)
    return {name: sum(each) / len(each) for name, each in sums.items()}
