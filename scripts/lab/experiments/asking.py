"""Sends images in each of their forms to a server that runs, for `ensemble experiments payloads`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import httpx

from deployments.protocol import inference_pb2 as pb
from scripts.errors import ScriptError
from scripts.lab.experiments.forms import Form, Request

INFER = "/inference.GRPCInferenceService/ModelInfer"
PREFIX, REGION = "es-payloads", "payloads"


class Asking:
    """A client of a server that runs."""

    def __init__(self, http_url: str, grpc_target: str) -> None:
        """Connect by both ways."""
        self._http = httpx.Client(base_url=http_url, timeout=60, trust_env=False)
        self._registered = False
        self._channel = grpc.insecure_channel(grpc_target)
        self._infer: Any = self._channel.unary_unary(INFER)

    def __call__(self, form: Form, request: Request) -> bool:
        """Send a request; whether it was answered, False if it was refused for what it is.

        Raises:
            ScriptError: it failed in another way.
        """
        if form.way == "grpc":
            try:
                pb.ModelInferResponse.FromString(self._infer(request.content, timeout=60))
            except grpc.RpcError as err:
                raise ScriptError(f"{form.name}: {err}") from err
            return True
        answer = self._http.post(request.path, content=request.content, headers=dict(request.headers))
        if answer.status_code not in {200, 400, 413, 422}:
            raise ScriptError(f"{form.name} was answered with {answer.status_code}: {answer.text[:500]}")
        return answer.status_code == 200

    def register(self, file: Path) -> None:
        """Let the server know of a file of /dev/shm; raises ScriptError if it refuses."""
        region = {"key": f"/{file.name}", "byte_size": file.stat().st_size}
        answer = self._http.post(f"/v2/systemsharedmemory/region/{REGION}/register", json=region)
        if answer.status_code != 200:
            raise ScriptError(f"shared memory: {answer.text[:500]}")
        self._registered = True

    def close(self) -> None:
        """Disconnect, and let the server forget what was registered."""
        if self._registered:
            self._http.post(f"/v2/systemsharedmemory/region/{REGION}/unregister")
        self._http.close()
        self._channel.close()


@contextmanager
def region(size: int, prefix: str = PREFIX) -> Iterator[Path]:
    """A file of /dev/shm that the server may use; removed in the end."""
    file = Path("/dev/shm") / f"{prefix}-{os.getpid()}"  # noqa: S108
    file.write_bytes(bytes(size))
    try:
        yield file
    finally:
        file.unlink()
