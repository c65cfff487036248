# /// script
# dependencies = ["bentoml==1.4.*", "openvino", "opencv-python-headless", "numpy"]
#
# [tool.benchmark]
# headers = { Content-Type = "application/json" }
# body = '{"images": ["BASE64"]}'
# ///
"""The ensemble on BentoML: a service with a batchable API, which takes lists; a client's list has one image, in base64.

One worker, whose batch has every thread, since each worker makes batches of its own. Metrics and access logs are off.
"""

import argparse
import base64
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import bentoml
import cv2
import numpy as np
import openvino as ov

MAX_BATCH_SIZE = 16
# What would take longer is refused, so it is far above what 32 clients wait for.
MAX_LATENCY_MS = 5000
# BentoML has a command line of its own, so what is ours comes to its workers by the environment.
OPTIONS = "PEER_OPTIONS"


@bentoml.service(workers=1, metrics={"enabled": False}, logging={"access": {"enabled": False}})
class Ensemble:
    def __init__(self) -> None:
        cv2.setNumThreads(1)
        options = json.loads(os.environ[OPTIONS])
        core = ov.Core()
        self.size = options["size"]
        self.requests = [
            core.compile_model(path, "CPU", options["openvino"]).create_infer_request() for path in options["models"]
        ]

    def decode(self, encoded: str) -> Any:
        image = cv2.imdecode(np.frombuffer(base64.b64decode(encoded), np.uint8), cv2.IMREAD_COLOR)
        if image is None:
            raise bentoml.exceptions.InvalidArgument("not an image")
        return cv2.resize(image, (self.size[1], self.size[0]), interpolation=cv2.INTER_AREA)

    @bentoml.api(batchable=True, max_batch_size=MAX_BATCH_SIZE, max_latency_ms=MAX_LATENCY_MS)
    def classify(self, images: list[str]) -> list[dict[str, Any]]:
        pixels = np.stack([self.decode(image) for image in images])
        for request in self.requests:
            request.start_async({0: pixels})
        for request in self.requests:
            request.wait()
        mean = np.mean([request.get_output_tensor(0).data for request in self.requests], axis=0)
        return [
            {"label": str(index), "index": int(index), "probability": float(row[index])}
            for row, index in zip(mean, mean.argmax(axis=1), strict=True)
        ]


def main() -> None:
    """Serve until SIGINT."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--size", type=int, nargs=2, required=True)
    parser.add_argument("--precision-hint", default="")
    parser.add_argument("models", nargs="+")
    args = parser.parse_args()
    hints: dict[str, Any] = {"PERFORMANCE_HINT": "LATENCY"}
    if args.precision_hint:
        hints["INFERENCE_PRECISION_HINT"] = args.precision_hint
    options = {"size": args.size, "models": args.models, "openvino": hints}
    # By another name: this file's own is the package's.
    shutil.copy(__file__, "service.py")
    program = str(Path(sys.executable).with_name("bentoml"))
    flags = ["--host", "127.0.0.1", "--port", str(args.port)]
    # Its home is here too, so that it writes nothing elsewhere.
    own = {OPTIONS: json.dumps(options), "BENTOML_HOME": str(Path.cwd() / "home"), "BENTOML_DO_NOT_TRACK": "True"}
    os.execve(program, [program, "serve", *flags, "service:Ensemble"], {**os.environ, **own})  # noqa: S606


if __name__ == "__main__":
    main()
