"""Reads the counters of a server around a load: of its own statistics, if it has any, and of this machine."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote

import msgspec

from deployments.contract.names import INGRESS
from ensemble_capacity.load.load import Target
from ensemble_capacity.load.machine import Processes
from ensemble_serving.transports import NoResponse, Request, Transport
from ensemble_serving.url import address, parsed

# Of what the server reports of itself; a server that is full may take longer, and is not waited for.
TIMEOUT_S = 5.0
PARTS = ("queue", "compute_input", "compute_infer", "compute_output")


@dataclass(frozen=True)
class Figures:
    """The use of a server between two moments; None and empty where it is not known.

    Attributes:
        seconds: between them.
        cpu_s: of the server's processes by name, seconds, the most first.
        memory_mb: likewise, at the end, megabytes.
        parts_us: of an inference, on average, microseconds: `queue`, `compute_input`, `compute_infer` and
            `compute_output`, as Triton's statistics have them.
        batches: how many batches had so many images.
    """

    seconds: float = 0.0
    cpu_s: dict[str, float] = field(default_factory=dict)
    memory_mb: dict[str, float] = field(default_factory=dict)
    parts_us: dict[str, float] = field(default_factory=dict)
    batches: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Moment:
    """The counters at a time, seconds of `time.perf_counter`."""

    at: float
    cpu_s: dict[str, float]
    statistics: dict[str, Any]


class Server:
    """A server whose counters are read; its own statistics over HTTP alone."""

    def __init__(self, target: Target, model: str) -> None:
        """Set the server, and the model whose statistics are read."""
        self._target, self._model = replace(target, timeout_s=TIMEOUT_S), model
        self._processes = Processes.of_port(*address(parsed(target.url)))

    def moment(self) -> Moment:
        """Read the counters now."""
        return Moment(
            time.perf_counter(),
            {} if self._processes is None else self._processes.cpu_s(),
            {} if self._target.is_grpc else asyncio.run(self._statistics()),
        )

    async def _statistics(self) -> dict[str, Any]:
        """Get the model's statistics, as the Open Inference Protocol's extension has them; empty if there are none."""
        transport = self._target.connect(1)
        try:
            found = await _json(transport, f"/v2/models/{quote(self._model, safe='')}/stats")
            replicas = (await _json(transport, "/stats")).get("replicas") if found else None
        finally:
            await transport.close()
        # Each replica of this application counts its own images.
        running = replicas.get(INGRESS, {}).get("RUNNING", 1) if isinstance(replicas, dict) else 1
        return found if running == 1 else {}

    def between(self, before: Moment, after: Moment) -> Figures:
        """Compare the counters of two moments, and read the memory that the server has now."""
        used = {name: seconds - before.cpu_s.get(name, 0.0) for name, seconds in after.cpu_s.items()}
        parts_us, batches = _compared(before.statistics, after.statistics)
        return Figures(
            after.at - before.at,
            dict(sorted(used.items(), key=lambda each: -each[1])),
            {} if self._processes is None else self._processes.memory_mb(),
            parts_us,
            batches,
        )


async def _json(transport: Transport, path: str) -> dict[str, Any]:
    """Get the JSON object of a path; empty if there is none."""
    with suppress(NoResponse, msgspec.MsgspecError):
        response = await transport.send(Request(path, method="GET"))
        if response.ok and isinstance(content := msgspec.json.decode(response.body), dict):
            return content
    return {}


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
