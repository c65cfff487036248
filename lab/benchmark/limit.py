"""The highest rate of the models, unserved: decoding and all members by OpenVINO, in one process."""

from __future__ import annotations

import itertools
import multiprocessing
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import openvino as ov

from deployments.contract.preprocessing import Preprocessing
from deployments.cpus import available_cpus
from deployments.transformer.decoding import decode, read_header
from deployments.transformer.transformer import TransformerSettings
from ensemble_models.prediction import preprocessing
from lab.benchmark.workloads import Workload
from lab.rows import Row
from scripts.errors import ScriptError

TRY_S = 1.0
# The largest batch that is tried.
MOST_AT_ONCE = 16
WARM_UP_S = 0.5
PATIENCE_S, TRIES_S = 120.0, 30.0


@dataclass(frozen=True)
class Setting:
    """Of each model INFERENCE_NUM_THREADS and NUM_STREAMS, and the images in an inference."""

    threads: int
    streams: int
    batch: int

    @property
    def compiled(self) -> tuple[int, int]:
        """The options that compile a model: threads and streams."""
        return self.threads, self.streams


def settings(clients: int) -> list[Setting]:
    """List the settings worth trying with `clients` images in flight: in one batch, in two, and singly."""
    cpus = available_cpus()
    compiled = dict.fromkeys([(cpus, cpus), (cpus, 1), (max(1, cpus // 2), 1)])
    batches = dict.fromkeys(max(1, min(size, MOST_AT_ONCE)) for size in (1, clients // 4, clients // 2, clients))
    return [Setting(threads, streams, batch) for threads, streams in compiled for batch in batches]


def compile_models(paths: list[Path], compiled: tuple[int, int], precision: str | None) -> list[ov.CompiledModel]:
    """Compile the models for the CPU with threads, streams, and an inference precision such as `f32` if given."""
    threads, streams = compiled
    options: dict[str, Any] = {"INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": streams, "ENABLE_CPU_PINNING": False}
    if precision is not None:
        options["INFERENCE_PRECISION_HINT"] = precision
    return [ov.Core().compile_model(path, "CPU", options) for path in paths]


def closed_loop(calls: Sequence[Callable[[], object]], seconds: float, warm_up_s: float) -> list[float]:
    """Repeat each call in a thread of its own; return the seconds of every call that ended after the warm-up."""
    begin = time.perf_counter() + warm_up_s
    end = begin + seconds

    def repeat(call: Callable[[], object]) -> list[float]:
        taken = []
        while (started := time.perf_counter()) < end:
            call()
            if begin <= (now := time.perf_counter()) <= end:
                taken.append(now - started)
        return taken

    with ThreadPoolExecutor(len(calls)) as pool:
        return [each for part in pool.map(repeat, calls) for each in part]


class Run:
    """A closed loop of so many images in flight, in batches: each is decoded in a pool, then in all models at once."""

    def __init__(self, models: list[ov.CompiledModel], encoded: list[bytes], wanted: list[Preprocessing]) -> None:
        """Set the models, the images, and how the pixels of each model are made."""
        self._models, self._wanted, self._images = models, wanted, itertools.cycle(encoded)
        self._kinds = list(dict.fromkeys(wanted))
        self._pool = ThreadPoolExecutor(available_cpus())

    def measure(self, clients: int, batch: int, seconds: float, warm_up_s: float) -> Row:
        """Measure images per second, latency in milliseconds, and CPU milliseconds per image."""
        before = time.process_time()
        requests = [[model.create_infer_request() for model in self._models] for _ in range(max(1, clients // batch))]
        latencies = closed_loop([partial(self._infer, each, batch) for each in requests], seconds, warm_up_s) * batch
        cpu_s = (time.process_time() - before) * seconds / (seconds + warm_up_s)
        # On a machine that other work has, a short trial may end before its first image.
        milliseconds = np.array(latencies or [np.nan]) * 1000
        return {
            "requests_per_s": len(latencies) / seconds,
            "p50_ms": float(np.percentile(milliseconds, 50)),
            "p99_ms": float(np.percentile(milliseconds, 99)),
            "server_cpu_ms_per_request": cpu_s * 1000 / max(1, len(latencies)),
        }

    def _infer(self, requests: list[ov.InferRequest], batch: int) -> None:
        pixels = self._decode(list(itertools.islice(self._images, batch)))
        for request, wanted in zip(requests, self._wanted, strict=True):
            request.start_async({0: pixels[wanted]}, share_inputs=True)
        for request in requests:
            request.wait()
        scores = np.mean([request.get_output_tensor(0).data for request in requests], axis=0)
        scores.argmax(axis=1).tolist()

    def _decode(self, encoded: list[bytes]) -> dict[Preprocessing, Any]:
        """Return the pixels of a batch for each preprocessing."""
        limits = TransformerSettings()
        decoded = self._pool.map(lambda image: decode(image, read_header(image, limits), self._kinds).pixels, encoded)
        return dict(zip(self._kinds, map(np.stack, zip(*decoded, strict=True)), strict=True))


def best(load: Workload, clients: Sequence[int], seconds: float, given: Sequence[Setting]) -> list[tuple[Setting, Row]]:
    """Measure each number of images in flight with its given setting, or else with the best of those worth trying."""
    cv2.setNumThreads(1)
    # The first tensor made of an array sets up OpenVINO's NumPy binding; two threads at it at once freeze for ever.
    ov.Tensor(np.zeros(1, np.uint8))
    wanted, encoded = [preprocessing(model) for model in load.found], [path.read_bytes() for path in load.images]
    tried = [[each] for each in given] or [settings(count) for count in clients]
    runs = {
        compiled: Run(compile_models(load.models, compiled, load.precision), encoded, wanted)
        for compiled in dict.fromkeys(each.compiled for candidates in tried for each in candidates)
    }

    def measured(count: int, each: Setting, seconds: float, warm_up_s: float) -> Row:
        return runs[each.compiled].measure(count, each.batch, seconds, warm_up_s)

    found = []
    for count, candidates in zip(clients, tried, strict=True):
        chosen = candidates[0]
        if len(candidates) > 1:
            chosen = max(candidates, key=lambda each: measured(count, each, TRY_S, TRY_S / 2)["requests_per_s"])
        found.append((chosen, measured(count, chosen, seconds, WARM_UP_S)))
    return found


class Limit:
    """The limit of a workload's models; without settings, the first measurement finds the settings of all others."""

    def __init__(
        self, load: Workload, clients: Sequence[int], seconds: float, settings: Sequence[Setting] = ()
    ) -> None:
        """Create a limit for numbers of images in flight, with a setting for each."""
        self._load, self._clients, self._seconds, self._settings = load, clients, seconds, settings
        # Each number of clients is tried with a dozen settings first.
        self._patience_s = PATIENCE_S + (seconds + TRIES_S) * len(clients)

    def measure(self) -> dict[int, Row]:
        """Measure the limit; return the figures by the number of clients.

        Raises ScriptError if it was not measured in its time.
        """
        # Watched from here: a native library that hangs with the interpreter's lock held can't time out by itself.
        with multiprocessing.get_context("spawn").Pool(1) as process:
            measuring = process.apply_async(best, (self._load, self._clients, self._seconds, self._settings))
            try:
                found = measuring.get(self._patience_s)
            except multiprocessing.TimeoutError as err:
                raise ScriptError(f"the limit was not measured within {self._patience_s:.0f} s; run it again") from err
        self._settings = [setting for setting, _ in found]
        return dict(zip(self._clients, (row for _, row in found), strict=True))
