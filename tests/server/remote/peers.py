"""Model servers that others wrote, each in an environment of its own, with the models in the box."""

import os
import signal
import subprocess
from contextlib import contextmanager
from pathlib import Path

import httpx

from deployments.repository.repository import DEFAULT_ROOT, find
from tests.environments import environment
from tests.server.server import eventually, free_ports

HERE = Path(__file__).parent


class Peer:
    """A server that can be stopped and started again on its ports."""

    def __init__(self, name, folder, *models):
        """Set which one, an empty folder, and the models' names; one without names wants a single path."""
        self.name, self._folder = name, folder
        self._python = environment(name, HERE / f"requirements-{name}.lock")
        self.http, self.grpc = free_ports(2)
        paths = {model: find(DEFAULT_ROOT, model).path for model in models or ("resnet",)}
        self._models = [f"{model}={path}" for model, path in paths.items()] if models else [str(paths["resnet"])]
        self._starts = 0
        self._process = None

    def url(self, way):
        """Its address by `http` or `grpc`."""
        return f"{way}://127.0.0.1:{getattr(self, way)}"

    def start(self):
        """Start it, and wait until its models are ready."""
        self._starts += 1
        folder = self._folder / f"{self.name}-{self._starts}"
        folder.mkdir()
        command = [self._python, HERE / f"{self.name}_script.py", str(self.http), str(self.grpc)]
        command += [str(folder), *self._models] if self.name == "triton" else self._models
        # Nothing of ours is imported there.
        clean = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "VIRTUAL_ENV"}}
        self._log = folder / "log"
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, cwd=folder, env=clean, start_new_session=True
            )
        assert eventually(self._is_ready, 120), self._log.read_text()

    def _is_ready(self):
        assert self._process.poll() is None, self._log.read_text()
        try:
            path = "/v1/models/resnet" if self.name == "tensorflow" else "/v2/models/resnet/ready"
            return httpx.get(f"{self.url('http')}{path}", trust_env=False).status_code == 200
        except httpx.TransportError:
            return False

    def stop(self):
        """End it, and what it started, at once."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None


@contextmanager
def peer(name, folder, *models):
    """A running server."""
    made = Peer(name, folder, *models)
    try:
        made.start()
        yield made
    finally:
        made.stop()
