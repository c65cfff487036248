"""Serves an application in the foreground until it is told to stop."""

from __future__ import annotations

import io
import logging
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import httpx
import yaml

from deployments.contract.errors import ConfigurationError
from scripts.errors import ScriptError
from scripts.serve.environment import set_up
from scripts.serve.leftovers import HAPROXY_FOLDER, clear_leftovers
from scripts.serve.ports import check_ports
from scripts.shipped import shipped

READY_TIMEOUT_S = 300.0
SETTLED_S = 1.0
STOP_TIMEOUT_S = 25.0
IMPORT_PATH = "graph.app:build"
READY = """Ready. Try:

    curl -H 'Content-Type: image/jpeg' --data-binary @{sample} {url}/classify

Documentation: {url}/docs   gRPC: {grpc}   Stop: Ctrl-C
In another shell, `serve status`, `serve deploy` and handles need:

    export {environment}
"""


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
        ScriptError: the deployment failed, or took longer than `READY_TIMEOUT_S`.
    """
    give_up = time.monotonic() + READY_TIMEOUT_S
    while not stop.wait(0.1):
        with suppress(httpx.TransportError):
            if httpx.get(f"{url}/v2/health/ready", timeout=5).status_code == 200:
                return
        for application in status().applications.values():
            if application.status in {"DEPLOY_FAILED", "UNHEALTHY"}:
                raise ScriptError(explain(application))
        if time.monotonic() > give_up:
            raise ScriptError(
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


def check(arguments: dict[str, Any]) -> None:
    """Look whether the application can be built, models and all.

    In a process of its own, because what it loads for that would stay in this one.

    Raises:
        ConfigurationError: it can't.
    """
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=_check, args=(arguments, theirs))
    child.start()
    theirs.close()
    with suppress(EOFError):
        raise ConfigurationError(ours.recv())
    child.join()


def _check(arguments: dict[str, Any], pipe: Any) -> None:
    from graph.agreement import agree
    from graph.config import parse

    try:
        agree(parse(arguments))
    except ConfigurationError as err:
        pipe.send(str(err))


def serve(config_file: Path) -> None:
    """Serve until Ctrl-C or SIGTERM.

    Raises:
        ScriptError: it can't be served.
        ConfigurationError: the application can't be built.
    """
    set_up()
    content = yaml.safe_load(config_file.read_text(encoding="utf-8"))
    for application in content.get("applications", []) if isinstance(content, dict) else []:
        if application.get("import_path") == IMPORT_PATH:
            check(application.get("args") or {})
    # Ray reads the environment when it is imported.
    import ray
    from ray import serve as ray_serve
    from ray.serve._private import api
    from ray.serve.schema import ServeDeploySchema

    config = ServeDeploySchema.model_validate(content)
    clear_leftovers()
    host, port = config.http_options.host, config.http_options.port
    check_ports((host, port), (host, config.grpc_options.port))
    url = f"http://{host}:{port}"
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    with stop_signals() as stop:
        cluster: Any = ray.init(address="local", logging_level=logging.ERROR, log_to_driver=False)
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
                ray_address = cluster.address_info["gcs_address"]
                print(
                    READY.format(
                        sample=shipped("tests/cat.jpg"),
                        url=url,
                        grpc=f"{host}:{config.grpc_options.port}",
                        environment=f"RAY_AUTH_MODE={os.environ['RAY_AUTH_MODE']} RAY_ADDRESS={ray_address} "
                        f"RAY_DASHBOARD_ADDRESS=http://{cluster.dashboard_url}",
                    ),
                    flush=True,
                )
            stop.wait()
        finally:
            print("Stopping.", flush=True)
            # Ray reports its own controller's end as an error.
            with redirect_stdout(io.StringIO()):
                # Should a node hang, the exit below still ends every process of Ray's.
                shutdown = threading.Thread(target=ray_serve.shutdown, daemon=True)
                shutdown.start()
                shutdown.join(STOP_TIMEOUT_S)
                ray.shutdown()
            clear_leftovers()
