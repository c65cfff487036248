"""Run with tritonclient's Python: asks over HTTP and gRPC, blocking and asynchronous; prints the answers as JSON."""

import asyncio
import json
import sys
from pathlib import Path

import numpy as np
import tritonclient.grpc as over_grpc
import tritonclient.grpc.aio as over_grpc_aio
import tritonclient.http as over_http
import tritonclient.http.aio as over_http_aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tritonclient.utils import InferenceServerException

HTTP, GRPC, PICTURE = sys.argv[1], sys.argv[2], Path(sys.argv[3]).read_bytes()


def images(library, *contents, **options):
    """The input of a request, as this client's library has it."""
    tensor = library.InferInput("image", [len(contents)], "BYTES")
    tensor.set_data_from_numpy(np.array(contents, dtype=np.object_), **options)
    return [tensor]


def told(answer):
    return {
        "label": [text.decode() for text in answer.as_numpy("label")],
        "index": answer.as_numpy("index").tolist(),
        "probabilities": answer.as_numpy("probabilities").tolist(),
    }


def refused(call, *arguments, **options):
    try:
        call(*arguments, **options)
    except InferenceServerException as err:
        return f"{err.status()} {err.message()}"
    return "answered"


def blocking(library, client):
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("ensemble")
    assert not client.is_model_ready("nothing")
    json_ = {"as_json": True} if library is over_grpc else {}
    config = client.get_model_config("ensemble", **json_)
    index = client.get_model_repository_index(**json_)
    asked = [library.InferRequestedOutput("probabilities", class_count=2)]
    return {
        **told(client.infer("ensemble", images(library, PICTURE))),
        "classes": [text.decode() for text in client.infer("ensemble", images(library, PICTURE), outputs=asked)
                    .as_numpy("probabilities").ravel()],
        "metadata": client.get_model_metadata("ensemble", **json_),
        "server": client.get_server_metadata(**json_),
        "config": config.get("config", config),
        "models": index if isinstance(index, list) else index["models"],
        "statistics": client.get_inference_statistics("ensemble", **json_)["model_stats"],
        "no_picture": refused(client.infer, "ensemble", images(library, b"no picture")),
        "no_model": refused(client.get_model_metadata, "nothing"),
        "not_built": refused(client.get_cuda_shared_memory_status),
    }  # fmt: skip


async def asynchronous(library, client):
    asked = [library.InferRequestedOutput("probabilities")]
    assert not await client.is_model_ready("nothing")
    answers = await asyncio.gather(
        *(client.infer("ensemble", images(library, PICTURE, PICTURE)) for _ in range(4)),
        client.infer("ensemble", images(library, PICTURE), outputs=asked),
    )
    await client.close()
    return [answer.as_numpy("probabilities").tolist() for answer in answers]


def compressed(client):
    """What it sends by itself, compressed on the way."""
    both = [
        client.infer("ensemble", images(over_http, PICTURE), request_compression_algorithm=algorithm)
        for algorithm in ("gzip", "deflate")
    ]
    return [told(answer) for answer in both]


async def main():
    http, grpc = over_http.InferenceServerClient(HTTP), over_grpc.InferenceServerClient(GRPC)
    health = health_pb2_grpc.HealthStub(grpc._channel)
    answers = {
        "http": blocking(over_http, http),
        "grpc": blocking(over_grpc, grpc),
        "compressed": compressed(http),
        "http_aio": await asynchronous(over_http, over_http_aio.InferenceServerClient(HTTP)),
        "grpc_aio": await asynchronous(over_grpc, over_grpc_aio.InferenceServerClient(GRPC)),
        "health": [
            health_pb2.HealthCheckResponse.ServingStatus.Name(
                health.Check(health_pb2.HealthCheckRequest(service=name)).status
            )
            for name in ("", "inference.GRPCInferenceService", "grpc.health.v1.Health")
        ],
    }
    print(json.dumps(answers))


asyncio.run(main())
