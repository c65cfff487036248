"""A real server under test: `ensemble serve` in a process of its own, with ports, folders and a Ray of its own."""

import itertools
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import ray
import yaml
from ray.serve.context import _set_global_client

from deployments.contract.hosts import RAY_METRICS_SETTING
from scripts.serve.exposure import CERTIFICATE
from scripts.serve.folder import PREFIX, RAY
from scripts.serve.ports import METRICS_SETTING

# Of each process that tests, so many. Above what Ray gives its workers, and below what Serve gives its replicas and a
# system whoever connects: a server listens seconds after its ports were chosen, and another's client had one by then.
FIRST_PORT, PORTS_EACH = 20_000, 2_000
# By default Ray exports what is counted every 10 s. It keeps a gauge for twice the time, and ours are set every 5 s.
FREQUENT_METRICS = {"RAY_metrics_report_interval_ms": "3000"}
# Beside this Python is the command `ensemble` that is tested: this environment's, or, by tests/container, a container.
TESTED = os.environ.get("ENSEMBLE_TESTED", sys.executable)
_first = FIRST_PORT + PORTS_EACH * int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_ports = itertools.cycle(range(_first, _first + PORTS_EACH))


def free_ports(count):
    """Ports that nothing listens on, and that no other process that tests is given."""
    found = []
    while len(found) < count:
        port = next(_ports)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("", port))
            found.append(port)
    return found


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
        "http_options": {"host": "127.0.0.1"},
        "grpc_options": {
            "grpc_servicer_functions": ["deployments.protocol.services.add_all"],
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
    """Starts on entry, stops by SIGINT on exit, which must take less than 30 s."""

    def __init__(self, content, folder=None, python=TESTED, flags=(), **environment):
        """Set a Serve config, the folder to serve from (default: an empty one), who serves, flags, more environment."""
        self._python, self._flags = python, flags
        self.content = content
        self._cwd = folder
        # Short, because the paths of Unix sockets below it are.
        self.folder = Path(tempfile.mkdtemp(prefix="es-"))
        self.http_port, self.grpc_port, metrics_port, self.ray_metrics_port = free_ports(4)
        for protocol, port in (("http", self.http_port), ("grpc", self.grpc_port)):
            content[f"{protocol}_options"] = {**content.get(f"{protocol}_options", {}), "port": port}
        self.environment = {
            **os.environ,
            # Its private folder, with Ray's and the logs, is in here.
            "RAY_TMPDIR": str(self.folder),
            "PYTHONFAULTHANDLER": "1",
            **FREQUENT_METRICS,
            METRICS_SETTING: str(metrics_port),
            RAY_METRICS_SETTING: str(self.ray_metrics_port),
            **environment,
        }
        # What is None is not in its environment.
        self.environment = {name: value for name, value in self.environment.items() if value is not None}
        scheme = "https" if CERTIFICATE in environment else "http"
        self.url = f"{scheme}://127.0.0.1:{self.http_port}"
        self.grpc = f"127.0.0.1:{self.grpc_port}"
        self.ports = {self.http_port, self.grpc_port, metrics_port, self.ray_metrics_port}

    def __enter__(self, interrupted_after=None):
        self._file = self.folder / "config.yaml"
        self._file.write_text(yaml.safe_dump(self.content))
        self._log = self.folder / "log"
        command = [Path(self._python).with_name("ensemble"), "serve", *self._flags, str(self._file)]
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, cwd=self._cwd or self.folder, env=self.environment
            )
        if interrupted_after is not None:
            time.sleep(interrupted_after)
            self.process.send_signal(signal.SIGINT)
        give_up = time.monotonic() + 240
        # One that was interrupted is to end, even if it was ready just before.
        while interrupted_after is not None or "Ready." not in self.log() or "source " not in self.log():
            if self.process.poll() is not None or time.monotonic() > give_up:
                if self.process.poll() is None:
                    # Every thread's stack goes to the log.
                    self.process.send_signal(signal.SIGABRT)
                    self.process.wait(30)
                printed = self.log() + self.ends_of_logs()
                self.remove()
                raise AssertionError(f"the server did not start:\n{printed}")
            time.sleep(0.1)
        return self

    def log(self):
        """What it printed so far."""
        return self._log.read_text()

    def told(self, name):
        """The value of a variable in the file that it names for other shells."""
        variables = Path(re.search(r"source (\S+)", self.log())[1]).read_text()
        return re.search(rf"{name}=(\S+)", variables)[1]

    def ray_logs(self, pattern):
        """The files of its Ray's log folder that match."""
        return sorted(self.folder.glob(f"{PREFIX}*/{RAY}/session_latest/logs/{pattern}"))

    def ends_of_logs(self):
        """The last of what its Ray and its nodes have written."""
        files = [file for pattern in ("serve/**/*.log", "gcs_server.*", "raylet.*") for file in self.ray_logs(pattern)]
        return "".join(f"\n--- {file.name}\n{file.read_text(errors='replace')[-3000:]}" for file in files)

    def reconfigure(self, user_config, deployment="Ingress"):
        """Deploy the same application with another `user_config`, as a user does."""
        application = self.content["applications"][0]
        for options in application["deployments"]:
            if options["name"] == deployment:
                options["user_config"] = user_config
            elif "user_config" in options:
                # Serve tells a replica nothing when the entry goes; an empty one is back to the start.
                options["user_config"] = {}
        self.deploy()

    def deploy(self):
        """Deploy its content again, which the caller has changed."""
        self._file.write_text(yaml.safe_dump(self.content))
        serve = Path(sys.executable).with_name("serve")
        address = self.told("RAY_DASHBOARD_ADDRESS")
        command = [serve, "deploy", "--address", address, str(self._file)]
        subprocess.run(command, check=True, capture_output=True, env=self.environment)

    def stop(self):
        """End it as Ctrl-C does; it must take less than 30 s."""
        started = time.monotonic()
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise AssertionError(f"Ctrl-C did not stop the server within 30 s:\n{self.log()}") from None
        finally:
            self.stopped_in = time.monotonic() - started

    def remove(self):
        """Remove its folder."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def __exit__(self, *_):
        try:
            self.stop()
            self.printed = self.log()
        finally:
            self.remove()

    @contextmanager
    def driver(self):
        """A Ray driver in this process, connected to the server's cluster."""
        ray.init(address=self.told("RAY_ADDRESS"), logging_level="ERROR", log_to_driver=False)
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
        time.sleep(0.1)
    return value


def post(server, image, content_type="image/jpeg", **query):
    """POST an image to /classify."""
    # Without TLS there is nothing to verify, and reading the certificates would take most of the time.
    headers = {} if content_type is None else {"Content-Type": content_type}
    return httpx.post(f"{server.url}/classify", content=image, headers=headers, params=query, timeout=60, verify=False)


def scrape(server, name):
    """The samples of a metric that Ray exports: [(labels, value)]."""
    samples = []
    for line in httpx.get(f"http://127.0.0.1:{server.ray_metrics_port}/metrics", timeout=30).text.splitlines():
        if found := re.fullmatch(rf"{name}\{{(.*)\}} (\S+)", line):
            samples.append((dict(re.findall(r'(\w+)="([^"]*)"', found[1])), float(found[2])))
    return samples
