"""Run with KServe's Python: asks by the SDK's inference clients over REST and gRPC; prints the answers as JSON."""

import asyncio
import json
import sys
from pathlib import Path

import numpy as np
from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferRequest
from kserve.inference_client import RESTConfig

URL, GRPC, PICTURE = sys.argv[1], sys.argv[2], Path(sys.argv[3]).read_bytes()


def request(**options):
    tensor = InferInput("image", [1], "BYTES")
    tensor.set_data_from_numpy(np.array([PICTURE], dtype=np.object_), **options)
    return InferRequest("ensemble", [tensor])


def told(answer):
    outputs = {output.name: output.as_numpy().tolist() for output in answer.outputs}
    labels = [text.decode() if isinstance(text, bytes) else text for text in outputs["label"]]
    return {"label": labels, "index": outputs["index"], "probabilities": outputs["probabilities"]}


async def main():
    rest, grpc = InferenceRESTClient(RESTConfig(protocol="v2")), InferenceGRPCClient(GRPC)
    ready = [
        [await rest.is_model_ready(URL, name), await grpc.is_model_ready(name)] for name in ("ensemble", "nothing")
    ]
    live = [await rest.is_server_live(URL), await rest.is_server_ready(URL), await grpc.is_server_live()]
    answers = {
        "ready": ready,
        "live": live,
        "rest": told(await rest.infer(URL, request(), model_name="ensemble")),
        "grpc": told(await grpc.infer(request())),
    }
    print(json.dumps(answers))
    await rest.close()
    await grpc.close()


asyncio.run(main())
