"""Serves an application in the foreground, in Ray Serve's fast mode, until Ctrl-C.

    python -m scripts.serve serve_config.yaml

What `serve run` does, and besides: sets the switches that Ray reads before it starts, turns Ray's token authentication
on, clears away what a killed run left on the ports, waits until every member has answered, and says so.
"""

from __future__ import annotations

import argparse
import logging
import os
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import httpx
import yaml

from graph.config import parse
from graph.errors import ConfigurationError

MIB = 1024 * 1024

# Read by Serve's controller, proxies and replicas when they are imported, so set before Ray starts.
FAST_MODE = {
    "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
    "RAY_SERVE_ENABLE_HA_PROXY": "1",
    # Handle calls go by gRPC in this mode; Serve's 4 MiB would refuse the largest image that the ingress admits.
    "RAY_SERVE_REPLICA_GRPC_MAX_MESSAGE_LENGTH": str(128 * MIB),
    "RAY_SERVE_GRPC_MAX_MESSAGE_SIZE": str(128 * MIB),
    # Two replicas behind one proxy: nothing to wait for once they have answered what they were asked.
    "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "1",
    # Serve's default of 5 s fails a start beside one busy core.
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "120",
    "RAY_SERVE_HAPROXY_STARTUP_TIMEOUT_S": "120",
    # The mode holds back 1,000 lines of a replica's log, for the access log's sake, which is off here.
    "RAY_SERVE_REQUEST_PATH_LOG_BUFFER_SIZE": "1",
    "RAY_AUTH_MODE": "token",
    "RAY_USAGE_STATS_ENABLED": "0",
    # OpenVINO and OpenCV have threads of their own; numpy needs none.
    "OMP_NUM_THREADS": "1",
}
TOKEN_FILE = Path.home() / ".ray" / "auth_token"
# Where Serve writes the configuration of its HAProxy.
HAPROXY_FOLDER = Path(os.environ.get("RAY_SERVE_HAPROXY_CONFIG_FILE_LOC", "/tmp/haproxy-serve/haproxy.cfg")).parent  # noqa: S108
READY_TIMEOUT_S = 300.0
SETTLED_S = 1.0
STOP_TIMEOUT_S = 25.0
SAMPLE = Path(__file__).resolve().parent.parent / "tests" / "cat.jpg"


class ServeError(RuntimeError):
    """The application can't be served; the message says why."""


def ensure_token() -> None:
    """Make Ray's token where Ray looks for it, unless there is one; readable by this user alone in either case."""
    if "RAY_AUTH_TOKEN" in os.environ or "RAY_AUTH_TOKEN_PATH" in os.environ:
        return
    if TOKEN_FILE.exists():
        # Where Ray made it, everyone may read it. Where it can't be changed, its owner knows why.
        with suppress(OSError):
            TOKEN_FILE.chmod(0o600)
        return
    TOKEN_FILE.parent.mkdir(mode=0o700, exist_ok=True)
    with os.fdopen(os.open(TOKEN_FILE, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as stream:
        stream.write(secrets.token_hex(32))


def leftovers() -> Iterator[tuple[int, str]]:
    """This user's processes that an earlier run of Serve left when it was killed: (pid, command line).

    Ray's own processes end with the one that started them. HAProxy does not, and keeps the ports; nor, for a while,
    does a replica that is busy. A process of a living Ray has a raylet among its ancestors, a leftover has not.
    """
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if folder.stat().st_uid != os.getuid():
                continue
            command = (folder / "cmdline").read_bytes().decode(errors="replace").strip("\0").split("\0")
            serves = any(Path(argument).is_relative_to(HAPROXY_FOLDER) for argument in command[1:])
            is_proxy = Path(command[0]).name == "haproxy" and serves
            if is_proxy or command[0].startswith("ray::"):
                pid = int(folder.name)
                if not any("raylet" in name for name in ancestors(pid)):
                    yield pid, " ".join(command)
        except OSError:
            continue


def ancestors(pid: int) -> Iterator[str]:
    """The names of a process' parent, its parent's parent and so on."""
    while pid > 1:
        status = Path(f"/proc/{pid}/status").read_text()
        fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        yield fields["Name"]
        pid = int(fields["PPid"])


def clear_leftovers() -> None:
    """End what an earlier, killed run left behind."""
    found = list(leftovers())
    for pid, command in found:
        print(f"ending a leftover of an earlier run: {pid} {command[:60]}", flush=True)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    if found:
        time.sleep(0.5)


def check_ports(*addresses: tuple[str, int]) -> None:
    """Raise ServeError if another program listens on one of the addresses."""
    for host, port in addresses:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError as err:
                raise ServeError(f"{host}:{port} can't be listened on: {err.strerror}; stop what uses it") from err


@contextmanager
def stop_signals() -> Iterator[threading.Event]:
    """An event that Ctrl-C or SIGTERM sets; a second one ends the process at once."""
    stop = threading.Event()

    def handle(_signal: int, _frame: FrameType | None) -> None:
        if stop.is_set():
            os._exit(1)
        stop.set()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def wait_until_ready(status: Callable[[], Any], url: str, stop: threading.Event) -> None:
    """Wait until every member has answered once.

    Raises:
        ServeError: the deployment failed, or took longer than `READY_TIMEOUT_S`.
    """
    give_up = time.monotonic() + READY_TIMEOUT_S
    while not stop.wait(0.1):
        with suppress(httpx.TransportError):
            if httpx.get(f"{url}/v2/health/ready", timeout=5).status_code == 200:
                return
        for application in status().applications.values():
            if application.status in {"DEPLOY_FAILED", "UNHEALTHY"}:
                raise ServeError(explain(application))
        if time.monotonic() > give_up:
            raise ServeError(
                f"the application was not ready after {READY_TIMEOUT_S:.0f} s; see /tmp/ray/session_latest"
            )


def wait_until_settled(stop: threading.Event) -> None:
    """Wait until HAProxy, if it is on, sends requests straight to a replica, and has done so for a while.

    Until then the first answers come by way of Serve's own proxy, and each change of the configuration reloads HAProxy,
    which cuts the connections that clients keep open.
    """
    if os.environ["RAY_SERVE_ENABLE_HA_PROXY"] != "1":
        return
    give_up = time.monotonic() + READY_TIMEOUT_S
    while not stop.wait(0.1) and time.monotonic() < give_up:
        # A folder for each node; those of earlier runs stay.
        file = max(HAPROXY_FOLDER.glob("*/haproxy.cfg"), key=lambda path: path.stat().st_mtime, default=None)
        if file is not None and "server SERVE_REPLICA" in file.read_text(encoding="utf-8"):
            rest = file.stat().st_mtime + SETTLED_S - time.time()
            if rest <= 0 or stop.wait(rest):
                return


def explain(application: Any) -> str:
    """The configuration error in a failed application's messages, or else the whole of them."""
    messages = [application.message, *(deployment.message for deployment in application.deployments.values())]
    for message in messages:
        for line in reversed(message.splitlines()):
            if "ConfigurationError: " in line:
                return str(line.partition("ConfigurationError: ")[2])
    return "\n".join(filter(None, messages))


def serve(config_file: Path) -> None:
    """Serve until Ctrl-C or SIGTERM.

    Raises:
        ServeError: it can't be served.
    """
    for name, value in FAST_MODE.items():
        os.environ.setdefault(name, value)
    if os.environ["RAY_AUTH_MODE"] == "token":
        ensure_token()
    # Ray reads the environment above when it is imported.
    import ray
    from ray import serve as ray_serve
    from ray.serve._private import api
    from ray.serve.schema import ServeDeploySchema

    config = ServeDeploySchema.model_validate(yaml.safe_load(config_file.read_text(encoding="utf-8")))
    for application in config.applications:
        if application.import_path == "graph.app:build":
            parse(application.args)
    clear_leftovers()
    host, port = config.http_options.host, config.http_options.port
    check_ports((host, port), (host, config.grpc_options.port))
    url = f"http://{host}:{port}"
    with stop_signals() as stop:
        ray.init(address="local", logging_level=logging.ERROR, log_to_driver=False)
        try:
            client = api.serve_start(
                proxy_location=config.proxy_location,
                http_options=config.http_options.model_dump(),
                grpc_options=config.grpc_options.model_dump(),
                global_logging_config=config.logging_config,
            )
            client.deploy_apps(config, _blocking=False)
            wait_until_ready(ray_serve.status, url, stop)
            wait_until_settled(stop)
            if not stop.is_set():
                print(
                    f"Ready. Try:\n\n    curl -H 'Content-Type: image/jpeg' --data-binary @{SAMPLE} {url}/classify\n\n"
                    f"Documentation: {url}/docs   gRPC: {host}:{config.grpc_options.port}   Stop: Ctrl-C",
                    flush=True,
                )
            stop.wait()
        finally:
            print("Stopping.", flush=True)
            # Should a node hang, the exit below still ends every process of Ray's.
            shutdown = threading.Thread(target=ray_serve.shutdown, daemon=True)
            shutdown.start()
            shutdown.join(STOP_TIMEOUT_S)
            ray.shutdown()
            clear_leftovers()


def main() -> None:
    """Parse the command line and serve."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path, nargs="?", default=Path("serve_config.yaml"), help="a Serve config file")
    args = parser.parse_args()
    try:
        serve(args.config)
    except (ServeError, ConfigurationError, OSError, ValueError, yaml.YAMLError) as err:
        sys.exit(f"{args.config}: {err}")


if __name__ == "__main__":
    main()
