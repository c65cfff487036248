"""Inference engines in one process, without a server: PyTorch eager, ONNX Runtime and OpenVINO.

python -m lab.experiments.engines WORKER SECONDS      # a `Worker` as JSON; it begins at a line of the standard input
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from deployments.cpus import available_cpus
from deployments.repository.repository import Model, find
from lab.benchmark.limit import compile_models
from lab.benchmark.workloads import IMAGENET_NAMES, Precision, workload
from scripts.errors import ScriptError
from scripts.shipped import CHECKOUT

CLIENTS, WARM_UP_S = 28, 1.0
# What a worker prints when it has compiled.
READY = "ready\n"
# The newest instructions that oneDNN may use: AVX-512 as Skylake had it, before VNNI.
WITHOUT_VNNI = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE"}
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

    def openvino(self, precision: Precision) -> Engine:
        """Compute what this application serves: pixels are converted and normalized inside of it."""
        model, pixels = self.model(precision), np.random.default_rng(0).integers(0, 256, (1, *self.size, 3), np.uint8)

        def start(threads: int, at_once: int) -> Callable[[], Infer]:
            hint = "f32" if precision == "float32" else None
            [compiled] = compile_models([model.path], (threads, at_once), hint)

            def make() -> Infer:
                request = compiled.create_infer_request()
                return lambda: request.infer({0: pixels}, share_inputs=True)

            return make

        return start

    def module(self) -> Any:
        """Make the same architecture in PyTorch; its weights are random, which no time depends on."""
        if self.load == "imagenet":
            import torchvision

            return torchvision.models.get_model(IMAGENET_NAMES[self.member], weights=None).eval()
        from lab.training.architectures import ARCHITECTURES, Mirrored

        # The bundled models see each image mirrored, too.
        return Mirrored(ARCHITECTURES[self.member](10)).eval()

    def pytorch(self) -> Engine:
        """Compute by PyTorch, eager."""
        import torch

        model, image = self.module(), torch.randn(1, 3, *self.size)

        def infer() -> object:
            with torch.inference_mode():
                return model(image)

        def start(threads: int, at_once: int) -> Callable[[], Infer]:
            torch.set_num_threads(max(1, threads // at_once))
            return lambda: infer

        return start

    def onnxruntime(self) -> Engine:
        """Compute what PyTorch exports by ONNX Runtime."""
        import onnxruntime
        import torch

        image = torch.randn(1, 3, *self.size)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "model.onnx"
            torch.onnx.export(self.module(), (image,), file, dynamo=True, external_data=False, verbose=False)
            encoded = file.read_bytes()

        def start(threads: int, at_once: int) -> Callable[[], Infer]:
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = max(1, threads // at_once)
            session = onnxruntime.InferenceSession(encoded, options, providers=["CPUExecutionProvider"])
            feed = {session.get_inputs()[0].name: image.numpy()}
            return lambda: lambda: session.run(None, feed)

        return start


NETWORKS = (
    Network("ResNet-50", "imagenet", "resnet"),
    Network("Inception v3", "imagenet", "inception"),
    Network("DenseNet-169", "imagenet", "densenet"),
    Network("bundled ResNet", "embedded", "resnet"),
    Network("bundled DenseNet", "embedded", "densenet"),
)


def figures(engine: Engine, seconds: float) -> dict[str, float]:
    """Measure what one client waits, in twice the time, and how many images many get."""
    ms, rate = timed(engine, 1, 2 * seconds)
    return {"requests": round(2 * seconds * rate), "ms": ms, "images_per_s": timed(engine, CLIENTS, seconds)[1]}


@dataclass(frozen=True)
class Worker:
    """A process of its own that computes a network for clients.

    Attributes:
        network: a name in `NETWORKS`.
        engine: OpenVINO, or PyTorch, which has float32 alone.
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

    def work(self, seconds: float) -> None:
        """Compile, report that, wait for a line, and print the measurement."""
        if self.cpus:
            os.sched_setaffinity(0, self.cpus)
        [network] = [each for each in NETWORKS if each.name == self.network]
        engine = network.pytorch() if self.engine == "PyTorch" else network.openvino(self.precision)

        def begin() -> None:
            print(READY, end="", flush=True)
            sys.stdin.readline()

        ms, images_per_s = timed(engine, self.clients, seconds, self.threads, begin)
        print(json.dumps({"ms": ms, "images_per_s": images_per_s}))


def together(
    workers: Sequence[Worker], seconds: float, environment: Mapping[str, str] | None = None
) -> list[dict[str, float]]:
    """Measure workers at the same time.

    Raises:
        ScriptError: one of them failed.
    """
    measured = []
    with ExitStack() as stack:
        processes = [
            stack.enter_context(
                subprocess.Popen(  # noqa: S603
                    [sys.executable, "-P", "-m", "lab.experiments.engines", json.dumps(asdict(each)), str(seconds)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    env={**os.environ, **(environment or {})},
                    text=True,
                    cwd=CHECKOUT,
                )
            )
            for each in workers
        ]
        for process in processes:
            assert process.stdout is not None
            # A framework may print lines of its own first.
            next((line for line in process.stdout if line == READY), None)
        # Each reads a line only now, so that all begin together.
        for process in processes:
            with suppress(BrokenPipeError):
                assert process.stdin is not None
                process.stdin.write("\n")
                process.stdin.flush()
        for worker, process in zip(workers, processes, strict=True):
            out, error = process.communicate()
            if process.returncode or not out:
                raise ScriptError(
                    f"{worker.network} by {worker.engine} ended with {process.returncode}: {error[-500:]}"
                )
            measured.append(cast(dict[str, float], json.loads(out.splitlines()[-1])))
    return measured


def capped(network: str, precision: Precision, seconds: float) -> dict[str, float]:
    """Measure OpenVINO in processes that may not use VNNI; raises ScriptError if they failed."""
    [one], [many] = (
        together([Worker(network, "OpenVINO", precision, available_cpus(), clients)], length, WITHOUT_VNNI)
        for clients, length in ((1, 2 * seconds), (CLIENTS, seconds))
    )
    requests = round(2 * seconds * one["images_per_s"])
    return {"requests": requests, "ms": one["ms"], "images_per_s": many["images_per_s"]}


def timed(
    engine: Engine,
    clients: int,
    seconds: float,
    threads: int | None = None,
    ready: Callable[[], object] = lambda: None,
) -> tuple[float, float]:
    """Measure milliseconds of an image, the median with its time in the queue, and images/s, in a closed loop.

    As many images as there are cores are computed at a time, the others wait: an engine is spared threads that
    outnumber the cores, unless more `threads` are asked for. `ready` is called when all is compiled.

    Raises:
        ScriptError: no image was computed in that time.
    """
    at_once = min(clients, available_cpus())
    make, turn = engine(threads or available_cpus(), at_once), threading.Semaphore(at_once)
    made = [make() for _ in range(clients)]
    # Two threads at OpenVINO's first tensor freeze for ever.
    made[0]()
    ready()
    begin = time.perf_counter() + WARM_UP_S
    end = begin + seconds

    def client(infer: Infer) -> list[float]:
        taken = []
        while (started := time.perf_counter()) < end:
            with turn:
                # Of those that wait at the end none begins.
                if time.perf_counter() >= end:
                    break
                infer()
            if begin <= (now := time.perf_counter()) <= end:
                taken.append(now - started)
        return taken

    with ThreadPoolExecutor(clients) as pool:
        taken = [each for part in pool.map(client, made) for each in part]
    if not taken:
        raise ScriptError(f"no image was computed in {seconds:g} s; give more --seconds")
    return 1000 * float(np.median(taken)), len(taken) / seconds


if __name__ == "__main__":
    Worker(**json.loads(sys.argv[1])).work(float(sys.argv[2]))
