# /// script
# dependencies = ["fastapi", "uvicorn[standard]", "openvino", "opencv-python-headless", "numpy"]
# ///
"""The ensemble behind FastAPI and uvicorn: one process, a thread for each request, as FastAPI's own pages do."""

import argparse
import threading

import cv2
import numpy as np
import openvino as ov
import uvicorn
from fastapi import FastAPI, HTTPException, Request
from fastapi.concurrency import run_in_threadpool

parser = argparse.ArgumentParser()
parser.add_argument("--port", type=int, required=True)
parser.add_argument("--size", type=int, nargs=2, required=True)
parser.add_argument("--precision-hint", default="")
parser.add_argument("models", nargs="+")
args = parser.parse_args()

cv2.setNumThreads(1)
core = ov.Core()
options = {"PERFORMANCE_HINT": "THROUGHPUT"}
if args.precision_hint:
    options["INFERENCE_PRECISION_HINT"] = args.precision_hint
models = [core.compile_model(path, "CPU", options) for path in args.models]
# An infer request serves one thread at a time.
local = threading.local()
app = FastAPI()


def predict(encoded: bytes) -> dict[str, object]:
    image = cv2.imdecode(np.frombuffer(encoded, np.uint8), cv2.IMREAD_COLOR)
    if image is None:
        raise HTTPException(400, "not an image")
    pixels = cv2.resize(image, (args.size[1], args.size[0]), interpolation=cv2.INTER_AREA)[None]
    if not hasattr(local, "requests"):
        local.requests = [model.create_infer_request() for model in models]
    for request in local.requests:
        request.start_async({0: pixels})
    scores = []
    for request in local.requests:
        request.wait()
        scores.append(request.get_output_tensor(0).data[0].copy())
    mean = np.mean(scores, axis=0)
    index = int(mean.argmax())
    return {"label": str(index), "index": index, "probability": float(mean[index])}


@app.post("/classify")
async def classify(request: Request) -> dict[str, object]:
    return await run_in_threadpool(predict, await request.body())


if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=args.port, log_level="warning", access_log=False)
