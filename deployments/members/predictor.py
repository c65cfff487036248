"""The predictor: one OpenVINO model, uint8 pixels in, probabilities out."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import openvino as ov

from deployments.contract.batch import Batch, Work
from deployments.contract.errors import ConfigurationError, EnsembleError, InferenceFailed
from deployments.contract.item import AttributeValue
from deployments.contract.payload import Pixels, Probabilities
from deployments.cpus import available_cpus
from models.errors import ModelError
from models.network import load, with_softmax
from models.repository import Model

if TYPE_CHECKING:
    from deployments.members.openvino import OpenVino

logger = logging.getLogger("ray.serve")

NO_SCORES: Probabilities = np.empty((0, 0), np.float32)
# A row that sums to 1 within this, without negative values, is a distribution already.
SIMPLEX_TOLERANCE = 1e-3
UNHEALTHY_AFTER = 3
# An inference that has not called back by then never will.
HUNG_AFTER_S = 30.0
# Images in one inference: more at once are no faster on a CPU, and each size takes memory and time to warm up.
MOST_AT_ONCE = 8


S = TypeVar("S", Pixels, range)


class Predictor:
    """Runs one member, asynchronously: OpenVINO's threads compute while the event loop goes on."""

    def __init__(self, config: OpenVino, model: Model, size: tuple[int, int], max_batch_size: int) -> None:
        """Compile the model and warm it up.

        Args:
            config: the member's threads, streams, hint and cache.
            model: where the model is.
            size: height and width of the pixels it will get.
            max_batch_size: the largest batch that it will get; each part that one may be split into is warmed up.

        Raises:
            ConfigurationError: the model can't be read, is no classifier, or can't run on pixels of that size.
        """
        self.name = config.name
        self.model = model.name
        self.version = model.version
        self._operation = config.operation
        self._least_at_once = config.least_at_once
        self._failures = 0
        self._closed = False
        # When each inference under way began, by its request; seconds of a monotonic clock.
        self._began: dict[int, float] = {}
        try:
            network = load(model)
        except ModelError as err:
            raise ConfigurationError(f"members: {self.name!r}: {err}") from err
        self._batch_limit = _fixed_batch(network)
        try:
            self._compile(network, config)
            sample = np.random.default_rng(0).integers(0, 256, (self._batch_limit or 1, *size, 3), np.uint8)
            scores = self._requests[0].infer({0: sample}, share_outputs=False)[0]
            if not _is_distribution(scores):
                self._compile(with_softmax(network), config)
            for batch_size in self._part_sizes(max_batch_size):
                pixels = np.zeros((self._batch_limit or batch_size, *size, 3), np.uint8)
                for request in self._requests:
                    request.infer({0: pixels})
        except RuntimeError as err:
            raise ConfigurationError(f"model {model.name!r} does not run on pixels of {size}: {err}") from err

    def _compile(self, network: ov.Model, config: OpenVino) -> None:
        options: dict[str, Any] = {
            "PERFORMANCE_HINT": config.performance_hint,
            "INFERENCE_NUM_THREADS": config.threads or available_cpus(),
            "ENABLE_CPU_PINNING": config.cpu_pinning,
        }
        if config.streams is not None:
            options["NUM_STREAMS"] = config.streams
        if config.inference_precision is not None:
            options["INFERENCE_PRECISION_HINT"] = config.inference_precision
        if config.cache_dir is not None:
            options["CACHE_DIR"] = str(Path(config.cache_dir))
        compiled = ov.Core().compile_model(network, "CPU", options)
        count = compiled.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS")
        self._requests = [compiled.create_infer_request() for _ in range(count)]
        self._idle: asyncio.Queue[ov.InferRequest] = asyncio.Queue()
        for request in self._requests:
            self._idle.put_nowait(request)

    async def __call__(self, batch: Batch[Pixels]) -> Batch[Probabilities]:
        """Pixels, uint8 [N,H,W,3] BGR, to probabilities, float32 [N,C], rows that sum to 1.

        The batch is split evenly over the infer requests that OpenVINO calls optimal. If inference fails, every
        request of the batch fails with `InferenceFailed`; so does one whose scores are no finite numbers.
        """
        work = Work(self._operation, batch)
        attributes: dict[str, AttributeValue] = {
            "ensemble.model.name": self.model,
            "ensemble.model.version": self.version,
        }
        errors: dict[int, EnsembleError] = {}
        scores, end_ns = NO_SCORES, None
        try:
            parts = await asyncio.gather(*(self._infer(part) for part in self._split(work.payload)))
            if parts:
                scores = np.concatenate([part for part, _ in parts])
                self._failures = 0
            end_ns = time.time_ns()
            attributes |= _durations(work.start_ns, [began_ns for _, began_ns in parts], end_ns)
        except (RuntimeError, MemoryError):
            self._failures += 1
            shape, traces = work.payload.shape, work.batch.traces
            logger.exception("member %r failed on pixels of shape %s; %s", self.name, shape, traces)
            failed = InferenceFailed(f"member {self.name!r} failed; the server's log has the cause")
            errors = dict.fromkeys(range(len(work.payload)), failed)
        finite = np.isfinite(scores).all(axis=1)
        if not finite.all():
            count, traces = np.count_nonzero(~finite), work.batch.traces
            logger.error("member %r answered no finite number for %d images of %s", self.name, count, traces)
            infinite = InferenceFailed(f"member {self.name!r} answered no finite number")
            errors = dict.fromkeys(np.flatnonzero(~finite).tolist(), infinite)
            scores = scores[finite]
        version = {"versions": {self.name: self.version}}
        return work.done(scores, lambda _: version, errors=errors, attributes=attributes, end_ns=end_ns)

    def _part_sizes(self, max_batch_size: int) -> list[int]:
        return sorted({len(part) for count in range(1, max_batch_size + 1) for part in self._split(range(count))})

    def close(self) -> None:
        """Let go of the infer requests, whose callbacks hold this; one under way goes when it is over."""
        self._closed = True
        while not self._idle.empty():
            self._let_go(self._idle.get_nowait())

    @staticmethod
    def _let_go(request: ov.InferRequest) -> None:
        request.set_callback(lambda _: None, None)

    def check_health(self) -> None:
        """Raise RuntimeError once several inferences in a row have failed, or one hangs; queues none of its own."""
        if self._failures >= UNHEALTHY_AFTER:
            raise RuntimeError(f"member {self.name!r} failed {self._failures} times in a row")
        if self._began and time.monotonic() - min(self._began.values()) > HUNG_AFTER_S:
            raise RuntimeError(f"an inference of member {self.name!r} has not ended for {HUNG_AFTER_S:.0f} s")

    def _split(self, rows: S) -> list[S]:
        """The rows in parts for an inference each: as equal as can be, and enough that no infer request is idle."""
        count = len(rows)
        if self._batch_limit:
            return [rows[first : first + self._batch_limit] for first in range(0, count, self._batch_limit)]
        parts = min(-(-count // self._least_at_once), max(len(self._requests), -(-count // MOST_AT_ONCE)))
        return [rows[count * i // parts : count * (i + 1) // parts] for i in range(parts)]

    async def _infer(self, pixels: Pixels) -> tuple[Probabilities, int]:
        """The scores, and when inference began, nanoseconds since the epoch: before that it waited for a request."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Probabilities] = loop.create_future()
        rows = len(pixels)
        if self._batch_limit and rows < self._batch_limit:
            pixels = np.concatenate([pixels, np.zeros((self._batch_limit - rows, *pixels.shape[1:]), np.uint8)])
        request = await self._idle.get()
        began_ns = time.time_ns()
        self._began[id(request)] = time.monotonic()

        def finish() -> None:
            # Runs whether or not the caller still waits: a request goes back only when its inference is over.
            try:
                request.wait()
                scores = np.array(request.get_output_tensor(0).data[:rows], np.float32)
                if not answer.done():
                    answer.set_result(scores)
            except Exception as err:
                if not answer.done():
                    answer.set_exception(err)
            finally:
                self._free(request)

        request.set_callback(lambda _: loop.call_soon_threadsafe(finish), None)
        try:
            request.start_async({0: pixels}, share_inputs=True)
        except BaseException:
            self._free(request)
            raise
        return await answer, began_ns

    def _free(self, request: ov.InferRequest) -> None:
        self._began.pop(id(request), None)
        if self._closed:
            self._let_go(request)
        else:
            self._idle.put_nowait(request)


def _durations(start_ns: int, began_ns: list[int], end_ns: int) -> dict[str, float]:
    """Queue wait, until the first part's inference began, and inference, from then on; milliseconds."""
    first = min(began_ns, default=end_ns)
    return {"ensemble.queue_wait_ms": (first - start_ns) / 1e6, "ensemble.inference_ms": (end_ns - first) / 1e6}


def _fixed_batch(network: ov.Model) -> int | None:
    batch = network.input(0).get_partial_shape()[0]
    return None if batch.is_dynamic else int(batch.get_length())


def _is_distribution(scores: Probabilities) -> bool:
    return bool(scores.min() >= 0 and np.abs(scores.sum(axis=1) - 1).max() <= SIMPLEX_TOLERANCE)
