"""Inference engines in one process, without a server: PyTorch eager, ONNX Runtime and OpenVINO."""

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
from lab.benchmark.limit import closed_loop, compile_models
from lab.benchmark.workloads import IMAGENET_NAMES, Precision, workload
from scripts.errors import ScriptError

CLIENTS, WARM_UP_S = 28, 1.0
# Of a worker's process: where it waits until all workers have compiled.
_barriers: list[Any] = []
Infer = Callable[[], object]
# Given the threads, and how many images share them at a time: what makes a client's inference of one.
Engine = Callable[[int, int], Callable[[], Infer]]


@dataclass(frozen=True)
class Network:
    """A network to compute.

    Attributes:
        name: for people.
        load: the workload whose repository has it.
        member: its name there.
    """

    name: str
    load: str
    member: str

    def model(self, precision: Precision) -> Model:
        """Find its model in a precision."""
        load = workload(self.load, precision)
        return find(load.repository, self.member, load.version)

    @property
    def size(self) -> tuple[int, int]:
        """The height and width of its images."""
        declared = self.model("float32").input
        return declared["height"], declared["width"]

    def module(self) -> Any:
        """Make the same architecture in PyTorch; its weights are random, which no time depends on."""
        if self.load == "imagenet":
            import torchvision

            return torchvision.models.get_model(IMAGENET_NAMES[self.member], weights=None).eval()
        from lab.training.architectures import ARCHITECTURES, Mirrored

        # The bundled models see each image mirrored, too.
        return Mirrored(ARCHITECTURES[self.member](10)).eval()


def openvino(network: Network, precision: Precision) -> Engine:
    """Compute by OpenVINO the model that this application serves, which converts and normalizes pixels."""
    model, pixels = network.model(precision), np.random.default_rng(0).integers(0, 256, (1, *network.size, 3), np.uint8)

    def start(threads: int, at_once: int) -> Callable[[], Infer]:
        hint = "f32" if precision == "float32" else None
        [compiled] = compile_models([model.path], (threads, at_once), hint)

        def make() -> Infer:
            request = compiled.create_infer_request()
            return lambda: request.infer({0: pixels}, share_inputs=True)

        return make

    return start


def pytorch(network: Network, _: Precision) -> Engine:
    """Compute by PyTorch, eager."""
    import torch

    model, image = network.module(), torch.randn(1, 3, *network.size)

    def infer() -> object:
        with torch.inference_mode():
            return model(image)

    def start(threads: int, at_once: int) -> Callable[[], Infer]:
        torch.set_num_threads(max(1, threads // at_once))
        return lambda: infer

    return start


def onnxruntime(network: Network, _: Precision) -> Engine:
    """Compute by ONNX Runtime the export of PyTorch."""
    import onnxruntime
    import torch

    image = torch.randn(1, 3, *network.size)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.onnx"
        torch.onnx.export(network.module(), (image,), file, dynamo=True, external_data=False, verbose=False)
        encoded = file.read_bytes()

    def start(threads: int, at_once: int) -> Callable[[], Infer]:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = max(1, threads // at_once)
        session = onnxruntime.InferenceSession(encoded, options, providers=["CPUExecutionProvider"])
        feed = {session.get_inputs()[0].name: image.numpy()}
        return lambda: lambda: session.run(None, feed)

    return start


ENGINES = {"OpenVINO": openvino, "PyTorch": pytorch, "ONNX Runtime": onnxruntime}
NETWORKS = (
    Network("ResNet-50", "imagenet", "resnet"),
    Network("Inception v3", "imagenet", "inception"),
    Network("DenseNet-169", "imagenet", "densenet"),
    Network("bundled ResNet", "embedded", "resnet"),
    Network("bundled DenseNet", "embedded", "densenet"),
)


@dataclass(frozen=True)
class Worker:
    """A process of its own that computes a network for clients.

    Attributes:
        network: a name in `NETWORKS`.
        engine: a name in `ENGINES`.
        precision: of the network.
        threads: that compute.
        clients: in a closed loop.
        cpus: the cores that it is pinned to; none for all.
    """

    network: str
    engine: str
    precision: Precision
    threads: int
    clients: int = 1
    cpus: tuple[int, ...] = ()

    def work(self, seconds: float) -> dict[str, float]:
        """Compile, wait until the others have compiled, and measure."""
        [barrier] = _barriers
        try:
            if self.cpus:
                os.sched_setaffinity(0, self.cpus)
            [network] = [each for each in NETWORKS if each.name == self.network]
            engine = ENGINES[self.engine](network, self.precision)
            ms, images_per_s = timed(engine, self.clients, seconds, self.threads, barrier.wait)
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
        failed = [(worker, err) for worker, each in zip(workers, measuring, strict=True) if (err := each.exception())]
    for worker, err in failed:
        if not isinstance(err, threading.BrokenBarrierError | BrokenProcessPool):
            raise ScriptError(f"{worker.network} by {worker.engine} failed: {err!r}") from err
    if failed:
        raise ScriptError(f"a process of {workers[0].network} by {workers[0].engine} ended: {failed[0][1]!r}")
    return [each.result() for each in measuring]


def figures(network: str, engine: str, precision: Precision, seconds: float, **environment: str) -> dict[str, float]:
    """Measure one client's latency, in twice the time, and the images per second of many clients."""
    one, many = (Worker(network, engine, precision, available_cpus(), clients) for clients in (1, CLIENTS))
    [alone], [crowded] = together([one], 2 * seconds, **environment), together([many], seconds, **environment)
    requests = round(2 * seconds * alone["images_per_s"])
    return {"requests": requests, "ms": alone["ms"], "images_per_s": crowded["images_per_s"]}


def timed(
    engine: Engine, clients: int, seconds: float, threads: int | None = None, ready: Callable[[], object] = lambda: None
) -> tuple[float, float]:
    """Measure milliseconds of an image, the median with its time in the queue, and images/s, in a closed loop.

    As many images as there are cores are computed at a time, the others wait: an engine is spared threads that
    outnumber the cores, unless more `threads` are asked for. `ready` is called when all is compiled.

    Raises ScriptError if no image was computed in that time.
    """
    at_once = min(clients, available_cpus())
    make, turn = engine(threads or available_cpus(), at_once), threading.Semaphore(at_once)
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
