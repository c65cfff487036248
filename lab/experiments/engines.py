"""Inference engines in processes of their own, without a server: PyTorch eager, ONNX Runtime and OpenVINO."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from deployments.cpus import available_cpus
from deployments.repository.repository import Model, find
from ensemble_models.prediction import preprocessing
from lab.benchmark.limit import closed_loop, compile_models
from lab.benchmark.workloads import IMAGENET_NAMES, Precision, workload
from scripts.errors import ScriptError

WARM_UP_S = 1.0
# The members of the workload `imagenet`, by the networks' names. Their weights are random, which no time depends on.
NETWORKS = {"ResNet-50": "resnet", "Inception v3": "inception"}
# Of a worker's process: where it waits until all workers have compiled.
_barriers: list[Any] = []
Infer = Callable[[], object]
# Given the threads, and how many images share them at a time: makes a client's inference of one image.
Engine = Callable[[int, int], Callable[[], Infer]]


def openvino(network: str, precision: Precision, threads: int, at_once: int) -> Callable[[], Infer]:
    """Compute by OpenVINO the model that this application serves, which converts and normalizes pixels."""
    model = _model(network, precision)
    pixels = np.random.default_rng(0).integers(0, 256, (1, *preprocessing(model).size, 3), np.uint8)
    [compiled] = compile_models([model.path], (threads, at_once), "f32" if precision == "float32" else None)
    return lambda: partial(compiled.create_infer_request().infer, {0: pixels}, share_inputs=True)


def pytorch(network: str, _: Precision, threads: int, at_once: int) -> Callable[[], Infer]:
    """Compute by PyTorch, eager."""
    import torch

    torch.set_num_threads(max(1, threads // at_once))
    module, image = _module(network)
    infer = torch.inference_mode()(partial(module, image))
    return lambda: infer


def onnxruntime(network: str, _: Precision, threads: int, at_once: int) -> Callable[[], Infer]:
    """Compute by ONNX Runtime the export of PyTorch."""
    import onnxruntime
    import torch

    module, image = _module(network)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.onnx"
        torch.onnx.export(module, (image,), file, dynamo=True, external_data=False, verbose=False)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = max(1, threads // at_once)
        session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    infer = partial(session.run, None, {session.get_inputs()[0].name: image.numpy()})
    return lambda: infer


def _model(network: str, precision: Precision) -> Model:
    load = workload("imagenet", precision)
    return find(load.repository, NETWORKS[network], load.version)


def _module(network: str) -> tuple[Any, Any]:
    """Make the same architecture in PyTorch, and an image."""
    import torch
    import torchvision

    module = torchvision.models.get_model(IMAGENET_NAMES[NETWORKS[network]], weights=None).eval()
    return module, torch.randn(1, 3, *preprocessing(_model(network, "float32")).size)


ENGINES = {"OpenVINO": openvino, "PyTorch": pytorch, "ONNX Runtime": onnxruntime}


@dataclass(frozen=True)
class Worker:
    """A process of its own that computes a network for clients.

    Attributes:
        engine: of `ENGINES`, with network and precision.
        threads: that compute.
        clients: in a closed loop.
        cpus: the cores that it is pinned to; none for all.
    """

    engine: Engine
    threads: int
    clients: int = 1
    cpus: tuple[int, ...] = ()

    def work(self, seconds: float) -> dict[str, float]:
        """Compile, wait until the others have compiled, and measure."""
        [barrier] = _barriers
        try:
            if self.cpus:
                os.sched_setaffinity(0, self.cpus)
            ms, images_per_s = timed(self.engine, self.clients, seconds, self.threads, barrier.wait)
        except BaseException:
            barrier.abort()
            raise
        return {"ms": ms, "images_per_s": images_per_s}


def _begin_at(barrier: Any) -> None:
    _barriers.append(barrier)


def together(workers: Sequence[Worker], seconds: float, **environment: str) -> list[dict[str, float]]:
    """Measure workers at the same time, each in a process. Raises ScriptError if one of them failed."""
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(len(workers))
    with (
        patch.dict(os.environ, environment),
        ProcessPoolExecutor(len(workers), context, _begin_at, (barrier,)) as pool,
    ):
        measuring = [pool.submit(worker.work, seconds) for worker in workers]
        failures = [err for each in measuring if (err := each.exception())]
    # The others only tell that one of them has failed.
    causes = [err for err in failures if not isinstance(err, threading.BrokenBarrierError | BrokenProcessPool)]
    for err in [*causes, *failures]:
        raise ScriptError(f"a process of an engine failed: {err!r}") from err
    return [each.result() for each in measuring]


def timed(
    engine: Engine, clients: int, seconds: float, threads: int, ready: Callable[[], object] = lambda: None
) -> tuple[float, float]:
    """Measure milliseconds of an image, the median with its time in the queue, and images/s, in a closed loop.

    As many images as there are cores are computed at a time, the others wait: an engine is spared threads that
    outnumber the cores, unless more `threads` are asked for. `ready` is called when all is compiled.

    Raises ScriptError if no image was computed in that time.
    """
    at_once = min(clients, available_cpus())
    make, turn = engine(threads, at_once), threading.Semaphore(at_once)
    made = [make() for _ in range(clients)]
    # Two threads at OpenVINO's first tensor freeze for ever.
    made[0]()
    ready()

    def infer(one: Infer) -> None:
        with turn:
            one()

    taken = closed_loop([partial(infer, each) for each in made], seconds, WARM_UP_S)
    if not taken:
        raise ScriptError(f"no image was computed in {seconds:g} s; give more --seconds")
    return 1000 * float(np.median(taken)), len(taken) / seconds
