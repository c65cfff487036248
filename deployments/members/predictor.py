"""The predictor: one OpenVINO model, uint8 pixels in, probabilities out."""

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np
import openvino as ov

from deployments.contract import clock
from deployments.contract.batch import NO_SCORES, Batch, Work, crashed, predicted
from deployments.contract.errors import ConfigurationError
from deployments.contract.item import STREAMS, THREADS, AttributeValue
from deployments.contract.payload import Pixels, Probabilities
from deployments.cpus import available_cores
from deployments.members.local import Health
from deployments.members.openvino_autotune import best_streams, conditions
from deployments.members.openvino_config import OpenVinoConfig
from deployments.repository.errors import ModelError, reason
from deployments.repository.heads import in_order, recognize, with_head
from deployments.repository.network import load
from deployments.repository.repository import Model

# Images in one inference: more at once are no faster on a CPU, and each size takes memory and time to warm up.
MOST_AT_ONCE = 8
# OpenVINO's binding calls nobody back for an inference that fails while it runs. So an inference that takes longer than
# this is looked at, and again after the same time.
LOOK_EVERY_S = 0.02


S = TypeVar("S", Pixels, range)


class Predictor:
    """Runs one member, asynchronously: OpenVINO's threads compute while the event loop goes on."""

    def __init__(
        self,
        config: OpenVinoConfig,
        model: Model,
        size: tuple[int, int],
        max_batch_size: int,
        order: Sequence[int] | None = None,
    ) -> None:
        """Compile the model for pixels of a size, height and width, and warm up each part that a batch may become.

        With an `order` the answers have the model's classes in that order.

        Raises:
            ConfigurationError: the model can't be read, is no classifier, or can't run on pixels of that size.
        """
        self.name = config.name
        self.model = model.name
        self.version = model.version
        self._operation = config.operation
        self._threads = config.threads or available_cores()
        self._least_at_once = config.least_at_once
        self.health = Health(config.name)
        self._closed = False
        # The inferences that have not ended, in the order of their start, each with its answer and its rows; and the
        # event loop in which a timer looks at them.
        self._running: dict[ov.InferRequest, tuple[asyncio.Future[Probabilities], int]] = {}
        self._looks_in: asyncio.AbstractEventLoop | None = None
        try:
            network = load(model)
        except ModelError as err:
            raise ConfigurationError(f"members: {self.name!r}: {err}") from err
        rows = network.input(0).get_partial_shape()[0]
        self._batch_limit = None if rows.is_dynamic else int(rows.get_length())
        try:
            streams = self._streams(model, network, config, size)
            self._compile(network, config, streams)
            sample = np.random.default_rng(0).integers(0, 256, (self._batch_limit or 1, *size, 3), np.uint8)
            head = recognize(network, infer_now(self._requests[0], sample))
            if head != "softmax" or order is not None:
                network = with_head(network, head)
                self._compile(network if order is None else in_order(network, order), config, streams)
            for batch_size in self._part_sizes(max_batch_size):
                pixels = np.zeros((self._batch_limit or batch_size, *size, 3), np.uint8)
                for request in self._requests:
                    infer_now(request, pixels)
        except ModelError as err:
            raise ConfigurationError(f"members: {self.name!r}: {err}, when you prepare it") from err
        except RuntimeError as err:
            raise ConfigurationError(f"model {model.name!r} does not run on pixels of {size}: {reason(err)}") from err

    def _streams(self, model: Model, network: ov.Model, config: OpenVinoConfig, size: tuple[int, int]) -> int:
        """Return the configured number of streams, or else the fastest."""
        if config.streams is not None:
            return config.streams
        pixels = np.zeros((self._batch_limit or MOST_AT_ONCE, *size, 3), np.uint8)

        def batch(streams: int) -> Callable[[], None]:
            self._compile(network, config, streams)
            return partial(self._execute, pixels)

        key = *conditions([model]), size, config.inference_precision, config.least_at_once
        return best_streams(key, self._threads, batch)

    def _execute(self, pixels: Pixels) -> None:
        """Infer a batch as if it were one of a client's, and wait for it."""
        parts = self._split(pixels)
        for first in range(0, len(parts), len(self._requests)):
            together = list(zip(self._requests, parts[first : first + len(self._requests)], strict=False))
            for request, part in together:
                request.start_async({0: part}, share_inputs=True)
            for request, _ in together:
                request.wait()

    def _compile(self, network: ov.Model, config: OpenVinoConfig, streams: int) -> None:
        options: dict[str, Any] = {
            "PERFORMANCE_HINT": "THROUGHPUT",
            "INFERENCE_NUM_THREADS": self._threads,
            # Otherwise two members of one machine share core 0.
            "ENABLE_CPU_PINNING": False,
            "NUM_STREAMS": streams,
        }
        if config.inference_precision is not None:
            options["INFERENCE_PRECISION_HINT"] = config.inference_precision
        compiled = ov.Core().compile_model(network, "CPU", options)
        count = compiled.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS")
        # As many as the process has for the model's streams, which share them.
        self._threads_per_request = max(1, options["INFERENCE_NUM_THREADS"] // count)
        self._requests = [compiled.create_infer_request() for _ in range(count)]
        self._idle: asyncio.Queue[ov.InferRequest] = asyncio.Queue()
        for request in self._requests:
            self._idle.put_nowait(request)

    async def __call__(self, batch: Batch[Pixels]) -> Batch[Probabilities]:
        """Predict probabilities, float32 [N,C], rows that sum to 1, from pixels, uint8 [N,H,W,3] BGR.

        The batch is split evenly over the infer requests that OpenVINO calls optimal. If inference fails, every
        request of the batch fails with `InferenceFailed`; so does one whose scores are no finite numbers.
        """
        work = Work(self._operation, batch)
        attributes: dict[str, AttributeValue] = {
            "ensemble.model.name": self.model,
            "ensemble.model.version": self.version,
            THREADS: self._threads,
            STREAMS: len(self._requests),
        }
        try:
            calls = [self._infer(work, part) for part in self._split(work.payload)]
            # One alone needs no task of its own.
            parts = await asyncio.gather(*calls) if len(calls) > 1 else [await call for call in calls]
        except (RuntimeError, MemoryError):
            self.health.failures += 1
            return crashed(work, self.name, attributes=attributes)
        if parts:
            self.health.failures = 0
        end_ns = clock.now_ns()
        began_ns = min((began_ns for _, began_ns in parts), default=end_ns)
        scores = np.concatenate([part for part, _ in parts]) if parts else NO_SCORES
        versions = [self.version] * len(scores)
        return predicted(work, self.name, scores, versions, began_ns=began_ns, attributes=attributes, end_ns=end_ns)

    def _part_sizes(self, max_batch_size: int) -> list[int]:
        return sorted({len(part) for count in range(1, max_batch_size + 1) for part in self._split(range(count))})

    def close(self) -> None:
        """Let go of the infer requests, whose callbacks hold this; one under way goes when it is over."""
        self._closed = True
        while not self._idle.empty():
            _let_go(self._idle.get_nowait())

    def _split(self, rows: S) -> list[S]:
        """Split rows into parts as equal as possible, one per inference, so that no infer request is idle."""
        count = len(rows)
        if self._batch_limit:
            return [rows[first : first + self._batch_limit] for first in range(0, count, self._batch_limit)]
        parts = max(-(-count // MOST_AT_ONCE), min(len(self._requests), count // self._least_at_once))
        return [rows[count * i // parts : count * (i + 1) // parts] for i in range(parts)]

    async def _infer(self, work: Work[Pixels], pixels: Pixels) -> tuple[Probabilities, int]:
        """Compute the scores; returns them, and the time when an infer request was free, ns since the epoch."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Probabilities] = loop.create_future()
        rows = len(pixels)
        if self._batch_limit and rows < self._batch_limit:
            pixels = np.concatenate([pixels, np.zeros((self._batch_limit - rows, *pixels.shape[1:]), np.uint8)])
        # OpenVINO reads the array's own memory, which the callback keeps; its way for any input takes twice the time.
        tensor = ov.Tensor(np.require(pixels, requirements=("C", "W")), shared_memory=True)
        with work.elsewhere():
            request = await self._idle.get()
        began_ns = clock.now_ns()

        finish = partial(self._finish, request, answer, rows)
        request.set_callback(lambda _: loop.call_soon_threadsafe(finish), tensor)
        self._running[request], self.health.began[request] = (answer, rows), time.monotonic()
        if self._looks_in is not loop:
            self._looks_in = loop
            loop.call_later(LOOK_EVERY_S, self._end_failed, loop)
        with work.elsewhere(self._threads_per_request):
            try:
                request.set_input_tensor(tensor)
                request.start_async()
            except BaseException:
                self._free(request)
                raise
            return await answer, began_ns

    def _finish(self, request: ov.InferRequest, answer: asyncio.Future[Probabilities], rows: int) -> None:
        """End an inference, whether or not its caller still waits; a request goes back once, when it is over."""
        running, _ = self._running.get(request, (None, 0))
        if running is not answer:
            return
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

    def _end_failed(self, loop: asyncio.AbstractEventLoop) -> None:
        """End the inferences that have failed, and look again while any is running."""
        started_before = time.monotonic() - LOOK_EVERY_S
        for request, (answer, rows) in list(self._running.items()):
            if self.health.began[request] > started_before:
                break
            try:
                request.wait_for(0)
            except RuntimeError:
                self._finish(request, answer, rows)
        if self._running:
            loop.call_later(LOOK_EVERY_S, self._end_failed, loop)
        else:
            self._looks_in = None

    def _free(self, request: ov.InferRequest) -> None:
        del self._running[request], self.health.began[request]
        if self._closed:
            _let_go(request)
        else:
            self._idle.put_nowait(request)


def infer_now(request: ov.InferRequest, pixels: Pixels) -> Probabilities:
    """Infer, and wait; raises RuntimeError if the model fails.

    With one thread, OpenVINO's own `infer` (2026.4) returns old scores then, and raises nothing.
    """
    request.start_async({0: pixels})
    request.wait()
    return np.array(request.get_output_tensor(0).data)


def _let_go(request: ov.InferRequest) -> None:
    request.set_callback(lambda _: None, None)
