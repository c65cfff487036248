# /// script
# dependencies = ["mosec", "openvino", "opencv-python-headless", "numpy"]
# ///
"""The ensemble behind mosec: a stage of two processes that decode, and one that infers in dynamic batches."""

import os
from typing import Any

import cv2
import numpy as np
import openvino as ov
from mosec import Server, ValidationError, Worker

# mosec has a command line of its own, so what is ours comes by the environment.
SIZE = tuple(int(edge) for edge in os.environ["PEER_SIZE"].split(","))
MODELS = os.environ["PEER_MODELS"].split(os.pathsep)
# One batch at a time, so every thread for it.
OPTIONS = {"PERFORMANCE_HINT": "LATENCY"}
if os.environ["PEER_PRECISION_HINT"]:
    OPTIONS["INFERENCE_PRECISION_HINT"] = os.environ["PEER_PRECISION_HINT"]
MAX_BATCH_SIZE = 16
MAX_WAIT_MS = 5


class Decode(Worker):
    def deserialize(self, data: bytes) -> bytes:
        return data

    def forward(self, data: bytes) -> Any:
        image = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
        if image is None:
            raise ValidationError("not an image")
        return cv2.resize(image, (SIZE[1], SIZE[0]), interpolation=cv2.INTER_AREA)


class Infer(Worker):
    def __init__(self) -> None:
        core = ov.Core()
        self.requests = [core.compile_model(path, "CPU", OPTIONS).create_infer_request() for path in MODELS]

    def forward(self, data: list[Any]) -> list[dict[str, Any]]:
        pixels = np.stack(data)
        for request in self.requests:
            request.start_async({0: pixels})
        for request in self.requests:
            request.wait()
        mean = np.mean([request.get_output_tensor(0).data for request in self.requests], axis=0)
        return [
            {"label": str(index), "index": int(index), "probability": float(row[index])}
            for row, index in zip(mean, mean.argmax(axis=1), strict=True)
        ]


if __name__ == "__main__":
    server = Server()
    server.append_worker(Decode, num=2, route="/classify")
    server.append_worker(Infer, num=1, max_batch_size=MAX_BATCH_SIZE, max_wait_time=MAX_WAIT_MS, route="/classify")
    server.run()
