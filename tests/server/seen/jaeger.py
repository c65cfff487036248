"""A real Jaeger under test, on ports of its own."""

import os
import re
import shutil
import subprocess
import time
from pathlib import Path

import httpx

from tests.conftest import ROOT
from tests.server.server import eventually, free_ports

BUILD, CONFIG = ROOT / "configs" / "jaeger" / "build.sh", ROOT / "configs" / "jaeger" / "jaeger.yaml"
VERSION = re.search(r"^version=(\S+)", BUILD.read_text(), re.MULTILINE)[1]
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "ensemble-serving"
PROGRAM = CACHE / f"jaeger-{VERSION}" / "jaeger"
# Whether it is there, or can be built.
POSSIBLE = PROGRAM.exists() or shutil.which("go") is not None


class Jaeger:
    """A Jaeger with our configuration but for its ports; `kill` and `start` are for its end and its return."""

    def __init__(self, log):
        """Set where it logs to; builds it where it has not been built."""
        if not PROGRAM.exists():
            subprocess.run([BUILD], check=True)
        self.http, query, self.otlp_grpc, self.otlp_http = free_ports(4)
        self.url = f"http://127.0.0.1:{self.http}"
        self._log = log
        ports = {
            "extensions.jaeger_query.http": self.http,
            "extensions.jaeger_query.grpc": query,
            "receivers.otlp.protocols.grpc": self.otlp_grpc,
            "receivers.otlp.protocols.http": self.otlp_http,
        }
        self._command = [PROGRAM, "--config", CONFIG]
        self._command += [f"--set={name}.endpoint=127.0.0.1:{port}" for name, port in ports.items()]

    def start(self):
        """Start it, with nothing in its memory."""
        with self._log.open("a") as log:
            self.process = subprocess.Popen(self._command, stdout=log, stderr=subprocess.STDOUT)
        assert eventually(self._answers, 60), self._log.read_text()
        return self

    def kill(self):
        """End it at once."""
        self.process.kill()
        self.process.wait()

    def _answers(self):
        assert self.process.poll() is None, self._log.read_text()
        try:
            return httpx.get(f"{self.url}/api/v3/services").status_code == 200
        except httpx.TransportError:
            return False

    def get(self, path, **query):
        """What its API answers; None for what it has not got."""
        answer = httpx.get(f"{self.url}{path}", params=query, timeout=30)
        return None if answer.status_code == 404 else answer.raise_for_status().json()

    def search(self, **query):
        """The ids of the traces that a search of its page finds."""
        since = int((time.time() - 3600) * 1e6)
        found = self.get("/api/traces", start=since, end=since + int(7200e6), limit=500, **query)
        return {trace["traceID"].rjust(32, "0") for trace in found["data"]}
