"""What a model computes fastest with, and what it costs: measured once, and kept in the user's cache folder."""

import hashlib
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TypeVar

import msgspec
import numpy as np
import openvino as ov

from deployments.repository.network import input_size, load
from deployments.repository.repository import Model, user_cache

# Of measurements, in the user's cache folder.
FOLDER = "measured"
logger = logging.getLogger("ray.serve")

# A measurement takes no longer than this in all, and of each number of streams no longer than that, seconds.
BUDGET_S, EACH_S = 2.0, 0.25
# A gain of less is this machine's noise, and every stream takes memory.
WORTH = 0.95
# Images of a batch whose CPU time is measured, and how often.
BATCH, TURNS = 4, 7
T = TypeVar("T")


def best_streams(key: Sequence[object], threads: int, batch: Callable[[int], Callable[[], object]]) -> int:
    """Return the number of streams that computes fastest.

    Args:
        key: what the measurement depends on: the model, its inputs, the machine and the software.
        threads: how many threads compute.
        batch: prepares a number of streams; what it returns executes a batch.
    """
    if threads == 1:
        return 1
    batch_ms = kept((*key, threads), dict[int, float], lambda: dict(measure(threads, batch)))
    fastest = min(batch_ms.values())
    return min(streams for streams, taken in batch_ms.items() if WORTH * taken <= fastest)


def kept(key: Sequence[object], kind: type[T], measured: Callable[[], T]) -> T:
    """Return the kept measurement of a key; measure now, and keep the result, if there is none."""
    name = f"{hashlib.sha256(repr(key).encode()).hexdigest()}.json"
    with suppress(OSError, msgspec.MsgspecError):
        return msgspec.json.decode((user_cache(FOLDER) / name).read_bytes(), type=kind)
    found = measured()
    logger.info("measured: %s", found)
    # Where nothing can be kept, the next start measures again.
    with suppress(OSError):
        file = user_cache(FOLDER) / name
        whole = file.with_suffix(f".{os.getpid()}")
        whole.write_bytes(msgspec.json.encode(found))
        whole.rename(file)
    return found


def cpu_ms(models: Sequence[Model]) -> list[float]:
    """Measure the CPU time of models on this machine, milliseconds per image: one thread, batches, in turns."""
    return kept(("cpu", *conditions(models)), list[float], lambda: _measured_ms(models))


def conditions(models: Iterable[Model]) -> list[object]:
    """List what a measurement depends on: the models' files, by what changes with their content, and the machine."""
    paths = [model.path.resolve() for model in models]
    files = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in paths]
    return [*files, ov.Core().get_property("CPU", "FULL_DEVICE_NAME"), ov.get_version()]


def _measured_ms(models: Sequence[Model]) -> list[float]:
    core, random, requests = ov.Core(), np.random.default_rng(0), []
    for model in models:
        network = load(model)
        size = input_size(network) or (model.input.get("height", 224), model.input.get("width", 224))
        batch = network.input(0).get_partial_shape()[0]
        pixels = random.integers(0, 256, (BATCH if batch.is_dynamic else batch.get_length(), *size, 3), np.uint8)
        request = core.compile_model(network, "CPU", {"INFERENCE_NUM_THREADS": 1}).create_infer_request()
        requests.append((request, pixels))
    took = np.full(len(requests), np.inf)
    # The first turn warms up; what disturbs makes an inference slower, never faster.
    for turn in range(1 + TURNS):
        for number, (request, pixels) in enumerate(requests):
            began = time.process_time()
            request.infer({0: pixels})
            if turn:
                took[number] = min(took[number], (time.process_time() - began) / len(pixels))
    return [round(1000 * float(each), 3) for each in took]


def measure(threads: int, batch: Callable[[int], Callable[[], object]]) -> Iterator[tuple[int, float]]:
    """Measure a batch, ms, with one stream, with a stream per thread, and with numbers between while time is left."""
    give_up = time.perf_counter() + BUDGET_S
    for streams in dict.fromkeys((1, threads, threads // 2, threads // 4)):
        if streams < 1 or (streams not in {1, threads} and time.perf_counter() > give_up):
            continue
        execute = batch(streams)
        execute()
        taken: list[float] = []
        end = time.perf_counter() + EACH_S
        while not taken or time.perf_counter() < end:
            began = time.perf_counter()
            execute()
            taken.append(time.perf_counter() - began)
        # What disturbs makes it slower, never faster.
        yield streams, 1000 * min(taken)
