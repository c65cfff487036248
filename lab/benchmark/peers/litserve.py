# /// script
# dependencies = ["litserve", "openvino", "opencv-python-headless", "numpy"]
# ///
"""The ensemble on LitServe: a `LitAPI` with dynamic batches, in one worker process behind one that answers HTTP.

An image is the body as it is, by FastAPI's type of `decode_request`. One worker makes larger batches than two would,
and each batch has every thread.
"""

import argparse
from typing import Annotated, Any

import cv2
import litserve as ls
import numpy as np
import openvino as ov
from fastapi import Body, HTTPException

MAX_BATCH_SIZE = 16
BATCH_TIMEOUT_S = 0.002


class Ensemble(ls.LitAPI):
    def __init__(self, size: tuple[int, int], models: list[str], options: dict[str, Any]) -> None:
        super().__init__(max_batch_size=MAX_BATCH_SIZE, batch_timeout=BATCH_TIMEOUT_S, api_path="/classify")
        self.size, self.models, self.options = size, models, options

    def setup(self, device: str) -> None:
        cv2.setNumThreads(1)
        core = ov.Core()
        self.requests = [core.compile_model(path, "CPU", self.options).create_infer_request() for path in self.models]

    def decode_request(self, request: Annotated[bytes, Body(media_type="image/jpeg")]) -> Any:
        image = cv2.imdecode(np.frombuffer(request, np.uint8), cv2.IMREAD_COLOR)
        if image is None:
            raise HTTPException(400, "not an image")
        return cv2.resize(image, (self.size[1], self.size[0]), interpolation=cv2.INTER_AREA)

    def batch(self, inputs: list[Any]) -> Any:
        return np.stack(inputs)

    def predict(self, x: Any) -> Any:
        for request in self.requests:
            request.start_async({0: x})
        for request in self.requests:
            request.wait()
        return np.mean([request.get_output_tensor(0).data for request in self.requests], axis=0)

    def unbatch(self, output: Any) -> list[Any]:
        return list(output)

    def encode_response(self, output: Any) -> dict[str, Any]:
        index = int(output.argmax())
        return {"label": str(index), "index": index, "probability": float(output[index])}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--size", type=int, nargs=2, required=True)
    parser.add_argument("--precision-hint", default="")
    parser.add_argument("models", nargs="+")
    args = parser.parse_args()
    hints: dict[str, Any] = {"PERFORMANCE_HINT": "LATENCY"}
    if args.precision_hint:
        hints["INFERENCE_PRECISION_HINT"] = args.precision_hint
    api = Ensemble(tuple(args.size), args.models, hints)
    server = ls.LitServer(api, accelerator="cpu", workers_per_device=1)
    server.run(
        host="127.0.0.1",
        port=args.port,
        num_api_servers=1,
        log_level="warning",
        access_log=False,
        generate_client_file=False,
    )
