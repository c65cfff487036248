"""MLPerf's own load generator, which decides when requests are sent and whether the result is valid.

Source: https://github.com/mlcommons/inference/tree/master/loadgen. Results are unofficial: an official one is submitted
and reviewed, takes MLPerf's models and images, and ten minutes.
"""

from __future__ import annotations

import asyncio
import tempfile
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ensemble_serving.transports import Request, Response
from scripts.errors import ScriptError
from scripts.load.load import Target

SCENARIOS = {"server": "Server", "singlestream": "SingleStream", "multistream": "MultiStream", "offline": "Offline"}
SUMMARY = "mlperf_log_summary.txt"
VALID = "Result is : VALID"


@dataclass(frozen=True)
class Plan:
    """A run of MLPerf's load generator.

    Attributes:
        scenario: one of `SCENARIOS`.
        seconds: at least; an official run takes 600.
        rate: images per second, as they are sent (`server`) or expected (`offline`).
        slo_ms: what the percentile of `server` may be.
        samples: images of a query of `multistream`.
        concurrency: requests under way at most, of `offline`.
    """

    scenario: str
    seconds: float
    rate: float
    slo_ms: float
    percentile: float
    samples: int = 8
    concurrency: int = 32


@dataclass(frozen=True)
class Result:
    """What MLPerf's load generator found.

    Attributes:
        summary: its own text.
        failed: requests that failed. MLPerf's generator counts none, so one of them makes the result invalid.
    """

    summary: str
    valid: bool
    failed: int
    first_error: str


class _Sender:
    """Sends what MLPerf's load generator issues, on an event loop in a thread of its own."""

    def __init__(self, target: Target, most: int, lg: Any) -> None:
        self.requests, self._lg = list(target.requests()), lg
        self._batch, self._most = target.batch, most
        self._waiting: deque[tuple[Request, Sequence[int]]] = deque()
        self._under_way = 0
        self.failed, self.first_error = 0, ""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="mlperf", daemon=True)
        self._thread.start()
        self._transport = target.connect()

    def issue(self, samples: Sequence[Any]) -> None:
        """Send samples, so many images per request; called by MLPerf's thread."""
        pairs = [(sample.index, sample.id) for sample in samples]
        self._loop.call_soon_threadsafe(self._issue, pairs)

    def _issue(self, pairs: Sequence[tuple[int, int]]) -> None:
        for start in range(0, len(pairs), self._batch):
            group = pairs[start : start + self._batch]
            self._waiting.append((self.requests[group[0][0]], [number for _, number in group]))
        self._send()

    def _send(self) -> None:
        while self._waiting and self._under_way < self._most:
            request, numbers = self._waiting.popleft()
            self._under_way += 1
            self._transport.send(request).add_done_callback(partial(self._done, numbers))

    def _done(self, numbers: Sequence[int], future: asyncio.Future[Response]) -> None:
        self._under_way -= 1
        error = future.exception()
        if error is not None or not future.result().ok:
            self.failed += 1
            shown = str(error) if error is not None else f"{future.result().status} {future.result().body[:200]!r}"
            self.first_error = self.first_error or shown
        self._lg.QuerySamplesComplete([self._lg.QuerySampleResponse(number, 0, 0) for number in numbers])
        self._send()

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._transport.close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def run(target: Target, plan: Plan) -> Result:
    """Let MLPerf's load generator run to its end.

    Raises:
        ScriptError: it is not installed.
    """
    try:
        import mlperf_loadgen as lg
    except ImportError as err:
        raise ScriptError("--mlperf: needs MLPerf's load generator: pip install mlcommons-loadgen") from err
    most = {"offline": plan.concurrency}.get(plan.scenario, 1_000_000)
    sender = _Sender(target, most, lg)
    sut = lg.ConstructSUT(sender.issue, lambda: None)
    count = len(sender.requests)
    library = lg.ConstructQSL(count, count, lambda _: None, lambda _: None)
    with tempfile.TemporaryDirectory() as folder:
        log = lg.LogSettings()
        log.enable_trace = False
        log.log_output.outdir = folder
        try:
            lg.StartTestWithLogSettings(sut, library, settings(lg, plan), log)
        finally:
            lg.DestroyQSL(library)
            lg.DestroySUT(sut)
            sender.close()
        summary = (Path(folder) / SUMMARY).read_text(encoding="utf-8")
    return Result(summary, VALID in summary and not sender.failed, sender.failed, sender.first_error)


def settings(lg: Any, plan: Plan) -> Any:
    """The plan as MLPerf's load generator has it."""
    found = lg.TestSettings()
    found.scenario = getattr(lg.TestScenario, SCENARIOS[plan.scenario])
    found.mode = lg.TestMode.PerformanceOnly
    found.min_duration_ms = round(1000 * plan.seconds)
    # As many as come in that time: early stopping judges how sure the percentile is.
    found.min_query_count = 1
    share = plan.percentile / 100
    if plan.scenario == "server":
        found.server_target_qps = plan.rate
        found.server_target_latency_ns = round(1e6 * plan.slo_ms)
        found.server_target_latency_percentile = share
    elif plan.scenario == "singlestream":
        found.single_stream_target_latency_percentile = share
    elif plan.scenario == "multistream":
        found.multi_stream_samples_per_query = plan.samples
        found.multi_stream_target_latency_percentile = share
    else:
        found.offline_expected_qps = plan.rate
    return found
