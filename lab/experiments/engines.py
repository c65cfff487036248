"""Inference engines in one process, without a server: PyTorch eager, ONNX Runtime and OpenVINO.

python -m lab.experiments.engines NETWORK PRECISION SECONDS      # OpenVINO, under the ISA cap of the environment
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
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
# The newest instructions that oneDNN may use: AVX-512 as Skylake had it, before VNNI.
WITHOUT_VNNI = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE"}
Infer = Callable[[], object]
# Given how many images are computed at a time, on equal shares of the cores: what makes a client's inference of one.
Engine = Callable[[int], Callable[[], Infer]]


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

        def start(at_once: int) -> Callable[[], Infer]:
            hint = "f32" if precision == "float32" else None
            [compiled] = compile_models([model.path], (available_cpus(), at_once), hint)

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

        def start(at_once: int) -> Callable[[], Infer]:
            torch.set_num_threads(max(1, available_cpus() // at_once))
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

        def start(at_once: int) -> Callable[[], Infer]:
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = max(1, available_cpus() // at_once)
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
    """Measure what one client waits, and how many images many get."""
    return {"ms": timed(engine, 1, seconds)[0], "images_per_s": timed(engine, CLIENTS, seconds)[1]}


def capped(network: str, precision: Precision, seconds: float) -> dict[str, float]:
    """Measure OpenVINO in a process that may not use VNNI.

    Raises:
        ScriptError: it failed.
    """
    command = [sys.executable, "-P", "-m", "lab.experiments.engines", network, precision, str(seconds)]
    done = subprocess.run(  # noqa: S603
        command, env={**os.environ, **WITHOUT_VNNI}, capture_output=True, text=True, cwd=CHECKOUT
    )
    if done.returncode:
        raise ScriptError(f"OpenVINO without VNNI ended with {done.returncode}: {done.stderr[-500:]}")
    return cast(dict[str, float], json.loads(done.stdout))


def timed(engine: Engine, clients: int, seconds: float) -> tuple[float, float]:
    """Measure milliseconds of an image, the median with its time in the queue, and images/s, in a closed loop.

    As many images as there are cores are computed at a time, the others wait: each engine is spared threads that
    outnumber the cores.

    Raises:
        ScriptError: no image was computed in that time.
    """
    at_once = min(clients, available_cpus())
    make, turn = engine(at_once), threading.Semaphore(at_once)
    made = [make() for _ in range(clients)]
    # Two threads at OpenVINO's first tensor freeze for ever.
    made[0]()
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
    [chosen] = [each for each in NETWORKS if each.name == sys.argv[1]]
    print(json.dumps(figures(chosen.openvino(cast(Precision, sys.argv[2])), float(sys.argv[3]))))
