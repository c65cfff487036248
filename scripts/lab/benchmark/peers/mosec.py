# /// script
# dependencies = ["mosec", "openvino", "opencv-python-headless", "numpy"]
# ///
"""The ensemble behind mosec: a stage of two processes that decode, and one that infers in dynamic batches."""

import argparse
import os
from typing import Any

import cv2
import numpy as np
import openvino as ov
from mosec import Server, ValidationError, Worker

# Of the command line mosec takes --port, and its processes see the same one.
parser = argparse.ArgumentParser()
parser.add_argument("--port", type=int, required=True)
parser.add_argument("--size", type=int, nargs=2, required=True)
parser.add_argument("--precision-hint", default="")
parser.add_argument("models", nargs="+")
args = parser.parse_args()

# One batch at a time, so every thread for it.
options = {"PERFORMANCE_HINT": "LATENCY"}
if args.precision_hint:
    options["INFERENCE_PRECISION_HINT"] = args.precision_hint
MAX_BATCH_SIZE = 16
MAX_WAIT_MS = 5


class Decode(Worker):
    def deserialize(self, data: bytes) -> bytes:
        return data

    def forward(self, data: bytes) -> Any:
        image = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
        if image is None:
            raise ValidationError("not an image")
        return cv2.resize(image, (args.size[1], args.size[0]), interpolation=cv2.INTER_AREA)


class Infer(Worker):
    def __init__(self) -> None:
        core = ov.Core()
        self.requests = [core.compile_model(path, "CPU", options).create_infer_request() for path in args.models]

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
    os.environ["MOSEC_ADDRESS"] = "127.0.0.1"
    server = Server()
    server.append_worker(Decode, num=2, route="/classify")
    server.append_worker(Infer, num=1, max_batch_size=MAX_BATCH_SIZE, max_wait_time=MAX_WAIT_MS, route="/classify")
    server.run()
