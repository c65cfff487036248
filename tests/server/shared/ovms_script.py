"""Run with ovmsclient's Python: asks TensorFlow Serving's API over REST and gRPC; prints the answers as JSON."""

import json
import sys
from pathlib import Path

import numpy as np
import ovmsclient

PICTURE = Path(sys.argv[3]).read_bytes()


def plain(answer):
    return answer.tolist() if isinstance(answer, np.ndarray) else answer


def asked(client):
    outputs = client.predict({"image": np.array([PICTURE, PICTURE])}, "ensemble")
    errors = []
    for call, arguments in (
        (client.predict, ({"image": np.array([b"no picture"])}, "ensemble")),
        (client.predict, ({"picture": np.array([PICTURE])}, "ensemble")),
        (client.predict, ({"image": np.array([PICTURE])}, "nothing")),
        (client.get_model_status, ("nothing",)),
    ):
        try:
            call(*arguments)
        except ovmsclient.tfs_compat.base.errors.ModelServerError as err:
            errors.append([type(err).__name__, str(err)])
    return {
        "outputs": {name: plain(value) for name, value in outputs.items()},
        "versioned": plain(client.predict({"image": np.array([PICTURE])}, "ensemble", 1)["probabilities"]),
        "metadata": client.get_model_metadata("ensemble"),
        "status": client.get_model_status("ensemble"),
        "errors": errors,
    }


clients = {"http": ovmsclient.make_http_client(sys.argv[1]), "grpc": ovmsclient.make_grpc_client(sys.argv[2])}
told = {protocol: asked(client) for protocol, client in clients.items()}
print(json.dumps(told, default=lambda value: value.decode() if isinstance(value, bytes) else int(value)))
