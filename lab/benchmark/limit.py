"""The highest rate of the models, unserved: `ensemble limit`."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click
import cv2
import numpy as np
import openvino as ov

from deployments.contract.preprocessing import Preprocessing
from deployments.cpus import available_cpus
from deployments.repository.repository import read
from deployments.transformer.decoding import decode, read_header
from deployments.transformer.transformer import TransformerSettings
from ensemble_models.options import FILE, POSITIVE, Command, Number, option
from ensemble_models.prediction import preprocessing

TRY_S = 1.0
# The largest batch that is tried.
MOST_AT_ONCE = 16
WARM_UP_S = 0.5


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

    def measure(self, clients: int, batch: int, seconds: float, warm_up_s: float) -> dict[str, float]:
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


@click.command("limit", cls=Command)
@click.argument("models", type=FILE, nargs=-1, required=True)
@option("--images", type=FILE, multiple=True, required=True, metavar="FILE...", help="Images to send.")
@option("--clients", type=POSITIVE, multiple=True, default=(1, 8, 32), metavar="N...", help="Images in flight.")
@option("--seconds", type=Number(), default=3, help="Seconds of each measurement.")
@option("--precision", help="INFERENCE_PRECISION_HINT.")
@option("--setting", multiple=True, metavar="THREADS:STREAMS:BATCH...", help="A setting for each of --clients.")
def main(
    models: tuple[Path, ...],
    images: tuple[Path, ...],
    clients: tuple[int, ...],
    seconds: float,
    precision: str | None,
    setting: tuple[str, ...],
) -> None:
    """Measure the highest rate of models: decoding and all members by OpenVINO's asynchronous requests in one process.

    ensemble limit models/resnet/2/model.xml models/densenet/2/model.xml --images photographs/*.jpg

    Each model stands in a repository, with its metadata. The command prints a line of JSON for each number of clients,
    that is, of images in flight; each is the best of the threads, streams and batch sizes tried, or of the given ones.
    """
    cv2.setNumThreads(1)
    # The first tensor made of an array sets up OpenVINO's NumPy binding; two threads at it at once freeze for ever.
    ov.Tensor(np.zeros(1, np.uint8))
    folders = [path.parent for path in models]
    wanted = [preprocessing(read(folder.parent.name, int(folder.name), folder)) for folder in folders]
    encoded = [path.read_bytes() for path in images]
    given = [[Setting(*map(int, text.split(":")))] for text in setting]
    tried = given or [settings(count) for count in clients]
    runs = {
        compiled: Run(compile_models(list(models), compiled, precision), encoded, wanted)
        for compiled in dict.fromkeys(each.compiled for candidates in tried for each in candidates)
    }

    def measured(count: int, each: Setting, seconds: float, warm_up_s: float) -> dict[str, float]:
        return runs[each.compiled].measure(count, each.batch, seconds, warm_up_s)

    for count, candidates in zip(clients, tried, strict=True):
        best = candidates[0]
        if len(candidates) > 1:
            rates = {each: measured(count, each, TRY_S, TRY_S / 2)["requests_per_s"] for each in candidates}
            best = max(rates, key=lambda each: rates[each])
        result = measured(count, best, seconds, WARM_UP_S)
        told = f"{best.threads}:{best.streams}:{best.batch}"
        print(json.dumps({"clients": count, "setting": told, **result}), flush=True)


if __name__ == "__main__":
    main()
