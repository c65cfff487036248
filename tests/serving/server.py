"""A real server under test: `scripts/serve.py` in a process of its own."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import httpx
import ray
import yaml
from ray.serve.context import _set_global_client

from tests.conftest import ROOT

HTTP_PORT, GRPC_PORT = 18000, 19000


def config(repository, placement, *, members=("one", "six", "brightness"), deployments=None, **args):
    """A Serve config with every node placed alike; `deployments` holds options by deployment name."""
    names = ["Ingress"]
    if placement == "separate":
        names += ["JpegTransformer", *members, "Combiner", "Labeler"]
    options = {name: {"ray_actor_options": {"num_cpus": 0.1}, "max_ongoing_requests": 1000} for name in names}
    for name, more in (deployments or {}).items():
        options[name] = {**options[name], **more}
    return {
        "proxy_location": "HeadOnly",
        "http_options": {"host": "127.0.0.1", "port": HTTP_PORT},
        "grpc_options": {
            "port": GRPC_PORT,
            "grpc_servicer_functions": [
                "deployments.protocol.inference_pb2_grpc.add_GRPCInferenceServiceServicer_to_server"
            ],
        },
        "logging_config": {"enable_access_log": False},
        "applications": [
            {
                "name": "ensemble",
                "route_prefix": "/",
                "import_path": "graph.app:build",
                "args": {
                    "model_repository": str(repository),
                    "members": [{"name": name, "placement": placement, "threads": 1} for name in members],
                    **{node: {"placement": placement} for node in ("transformer", "combiner", "labeler")},
                    **args,
                },
                "deployments": [{"name": name, **option} for name, option in options.items()],
            }
        ],
    }


class Server:
    """Starts on entry, stops by SIGINT on exit, which must take less than 30 s and leave no port in use."""

    def __init__(self, content, **environment):
        self.content = content
        self.environment = environment
        self.url = f"http://127.0.0.1:{HTTP_PORT}"
        self.grpc = f"127.0.0.1:{GRPC_PORT}"

    def __enter__(self):
        self._folder = tempfile.TemporaryDirectory()
        self._file = Path(self._folder.name) / "config.yaml"
        self._file.write_text(yaml.safe_dump(self.content))
        self._log = (Path(self._folder.name) / "log").open("w+")
        command = [sys.executable, "-m", "scripts.serve", str(self._file)]
        environment = {**os.environ, **self.environment}
        self.process = subprocess.Popen(command, stdout=self._log, stderr=subprocess.STDOUT, cwd=ROOT, env=environment)
        give_up = time.monotonic() + 240
        while "Ready." not in self.log():
            if self.process.poll() is not None or time.monotonic() > give_up:
                self.process.kill()
                raise AssertionError(f"the server did not start:\n{self.log()}")
            time.sleep(0.2)
        return self

    def log(self):
        """What it printed so far."""
        self._log.flush()
        return Path(self._log.name).read_text()

    def reconfigure(self, user_config, deployment="Ingress"):
        """Deploy the same application with another `user_config`, as a user does."""
        application = self.content["applications"][0]
        for options in application["deployments"]:
            if options["name"] == deployment:
                options["user_config"] = user_config
            elif "user_config" in options:
                # Serve tells a replica nothing when the entry goes; an empty one is back to the start.
                options["user_config"] = {}
        self._file.write_text(yaml.safe_dump(self.content))
        serve = Path(sys.executable).with_name("serve")
        subprocess.run([serve, "deploy", str(self._file)], check=True, capture_output=True, env=dict(os.environ))

    def __exit__(self, *_):
        started = time.monotonic()
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise AssertionError(f"Ctrl-C did not stop the server within 30 s:\n{self.log()}") from None
        finally:
            self.stopped_in = time.monotonic() - started
            self._log.close()
            self._folder.cleanup()


@contextmanager
def driver():
    """A Ray driver in this process, connected to the server's cluster."""
    ray.init(address="auto", logging_level="ERROR", log_to_driver=False)
    try:
        yield
    finally:
        ray.shutdown()
        # Serve remembers the controller of the cluster that it spoke to last.
        _set_global_client(None)


def eventually(check, seconds=30):
    """Wait until `check` is true; its last value."""
    give_up = time.monotonic() + seconds
    while not (value := check()) and time.monotonic() < give_up:
        time.sleep(0.2)
    return value


def post(server, image, content_type="image/jpeg", **query):
    """POST an image to /classify."""
    headers = {} if content_type is None else {"Content-Type": content_type}
    return httpx.post(f"{server.url}/classify", content=image, headers=headers, params=query, timeout=60)
