"""Run with tritonclient's Python: infers a picture, then no picture; prints both answers as JSON."""

import json
import sys
from pathlib import Path

import numpy as np
import tritonclient.grpc as triton

client = triton.InferenceServerClient(sys.argv[1])
assert client.is_server_live()
assert client.is_server_ready()
assert client.is_model_ready("ensemble")


def infer(image):
    tensor = triton.InferInput("image", [1], "BYTES")
    tensor.set_data_from_numpy(np.array([image], dtype=np.object_))
    return client.infer("ensemble", [tensor])


answer = infer(Path(sys.argv[2]).read_bytes())
result = {
    "label": [text.decode() for text in answer.as_numpy("label")],
    "index": answer.as_numpy("index").tolist(),
    "probabilities": answer.as_numpy("probabilities").tolist(),
}
try:
    infer(b"no picture")
except triton.InferenceServerException as err:
    result["error"] = err.status()
print(json.dumps(result))
