"""Inference engines in this process, without a server: PyTorch eager, ONNX Runtime and OpenVINO."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from deployments.cpus import available_cpus
from lab.benchmark.limit import compile_models
from lab.benchmark.workloads import IMAGENET_NAMES, Precision, workload
from scripts.errors import ScriptError

WARM_UP_S = 1.0
Infer = Callable[[], object]
# Given how many images are computed at a time, on equal shares of the cores: what makes a client's inference of one.
Engine = Callable[[int], Callable[[], Infer]]


@dataclass(frozen=True)
class Network:
    """A network to compute.

    Attributes:
        name: for people.
        load: the workload that has its files.
        member: whose model it is there.
    """

    name: str
    load: str
    member: str

    def openvino(self, precision: Precision) -> Engine:
        """What this application serves: pixels are converted and normalized inside of it."""
        load = workload(self.load, precision)
        [path] = [each for each in load.models if each.parent.parent.name == self.member]
        pixels = np.random.default_rng(0).integers(0, 256, (1, *load.size, 3), np.uint8)

        def start(at_once: int) -> Callable[[], Infer]:
            [model] = compile_models([path], (available_cpus(), at_once), load.precision)

            def make() -> Infer:
                request = model.create_infer_request()
                return lambda: request.infer({0: pixels}, share_inputs=True)

            return make

        return start

    def module(self) -> Any:
        """The same architecture in PyTorch; its weights are random, which no time depends on."""
        if self.load == "imagenet":
            import torchvision

            return torchvision.models.get_model(IMAGENET_NAMES[self.member], weights=None).eval()
        from lab.training.architectures import ARCHITECTURES, Mirrored

        # The bundled models see each image mirrored, too.
        return Mirrored(ARCHITECTURES[self.member](10)).eval()

    def image(self) -> Any:
        """Normalized pixels, float32 [1,3,H,W]."""
        import torch

        return torch.randn(1, 3, *workload(self.load, "float32").size)

    def pytorch(self) -> Engine:
        """PyTorch, eager."""
        import torch

        model, image = self.module(), self.image()

        def infer() -> object:
            with torch.inference_mode():
                return model(image)

        def start(at_once: int) -> Callable[[], Infer]:
            torch.set_num_threads(max(1, available_cpus() // at_once))
            return lambda: infer

        return start

    def onnxruntime(self) -> Engine:
        """ONNX Runtime, with what PyTorch exports."""
        import onnxruntime
        import torch

        image = self.image()
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


def timed(engine: Engine, clients: int, seconds: float) -> tuple[float, float]:
    """Milliseconds of an image, the median with its time in the queue, and images per second, in a closed loop.

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
