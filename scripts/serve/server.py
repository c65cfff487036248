"""Serves an application in the foreground until it is told to stop."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import httpx
import yaml

from deployments.contract.errors import ConfigurationError
from graph.ray_internals.head import LOOPBACK
from scripts.errors import ScriptError
from scripts.serve import front, haproxy, tls
from scripts.serve.api import ServeApi
from scripts.serve.block import block_of_ports
from scripts.serve.cluster import Cluster, clear_leftovers, end_at_once
from scripts.serve.environment import FOR_CLIENTS, launcher, set_up
from scripts.serve.exposure import IMPORT_PATH, check_exposure
from scripts.serve.launcher import BINARY
from scripts.serve.ports import check_ports, wanted
from scripts.shipped import shipped

READY_TIMEOUT_S = 300.0
SETTLED_S = 1.0
STOP_TIMEOUT_S = 20.0
LOOK_EVERY_S = 1.0
# A start that takes longer says what it waits for, and again whenever that has changed.
QUIET_S = 15.0
PLAIN_FRONT = "warning: HAProxy runs as Serve configures it (docs/operations.md says what that lacks): {why}"
READY = """Ready. Try:

    curl {trust}-H 'Content-Type: image/jpeg' --data-binary @{sample} {url}/classify

Page: {url}/   Documentation: {url}/docs   gRPC: {grpc}   Stop: Ctrl-C
In another shell, `serve status`, `serve deploy` and handles need:

    export {environment}
"""


@contextmanager
def stop_signals() -> Iterator[threading.Event]:
    """An event that Ctrl-C, SIGTERM or a closed terminal sets; a second signal ends every process at once."""
    stop = threading.Event()

    def handle(_signal: int, _frame: FrameType | None) -> None:
        if stop.is_set():
            end_at_once()
            os._exit(1)
        stop.set()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def serve(config_file: Path, whole_dashboard: bool = False, without_keys: bool = False) -> None:
    """Serve until Ctrl-C or SIGTERM.

    Args:
        config_file: a Serve config.
        whole_dashboard: whether Ray's dashboard has all its pages.
        without_keys: whether other machines may reach it without a key.

    Raises:
        ScriptError: it can't be served, or the cluster has ended.
        ConfigurationError: the application can't be built.
    """
    set_up()
    config = yaml.safe_load(config_file.read_text(encoding="utf-8"))
    if not isinstance(config, dict):
        raise ScriptError("a Serve config file is a mapping; see serve_config.yaml")
    # Serve's own default is every interface.
    config["http_options"] = {"host": LOOPBACK, **(config.get("http_options") or {})}
    certificate = tls.certificate(config)
    check_exposure(config, without_keys, certificate is not None)
    for application in config.get("applications", []):
        if application.get("import_path") == IMPORT_PATH:
            check(application.get("args") or {})
    http, grpc, *more = wanted(config)
    with stop_signals() as stop, haproxy.private_folder(), block_of_ports():
        clear_leftovers()
        check_ports(http, grpc, *more)
        cluster = Cluster(whole_dashboard)
        api = ServeApi(cluster.dashboard)
        try:
            api.deploy(config, stop)
            url = f"http{'s' if certificate else ''}://{http.host}:{http.number}"
            wait_until_ready(api, cluster, url, stop)
            wait_until_settled(stop)
            if not stop.is_set():
                environment = {
                    **{name: os.environ[name] for name in FOR_CLIENTS if name in os.environ},
                    "RAY_ADDRESS": cluster.address,
                    "RAY_DASHBOARD_ADDRESS": cluster.dashboard,
                }
                told = " ".join(f"{name}={value}" for name, value in environment.items())
                sample, target = shipped("tests/cat.jpg"), f"{grpc.host}:{grpc.number}"
                trust = f"--cacert {certificate} " if certificate else ""
                print(READY.format(trust=trust, sample=sample, url=url, grpc=target, environment=told), flush=True)
            while not stop.wait(LOOK_EVERY_S):
                if lost := cluster.lost():
                    raise ScriptError(f"Ray's {lost} has ended; see {cluster.session}/logs")
        finally:
            # Who reads what is printed may be gone; and should a node hang, every process is ended all the same.
            try:
                with suppress(OSError):
                    print("Stopping.", flush=True)
                if cluster.lost() is None:
                    with suppress(httpx.HTTPError):
                        api.shut_down(STOP_TIMEOUT_S)
            finally:
                cluster.end()


def wait_until_ready(api: ServeApi, cluster: Cluster, url: str, stop: threading.Event) -> None:
    """Wait until every member has answered once; what is waited for is printed every now and then.

    Raises:
        ScriptError: the deployment failed, or took longer than `READY_TIMEOUT_S`.
    """
    began = spoke = time.monotonic()
    waited_for = said = ""
    while not stop.wait(0.1):
        try:
            # Whose name the certificate has is the clients' matter: this asks whether members have answered.
            ready = httpx.get(f"{url}/v2/health/ready", timeout=5, trust_env=False, verify=False)  # noqa: S501
            if ready.status_code == httpx.codes.OK:
                return
            waited_for = f"{url} answers {ready.status_code}: {ready.text[:500]}"
        except httpx.TransportError as err:
            waited_for = f"{url} does not answer yet ({type(err).__name__})"
        if failure := api.failure():
            raise ScriptError(failure)
        if lost := cluster.lost():
            raise ScriptError(f"Ray's {lost} has ended; see {cluster.session}/logs")
        now = time.monotonic()
        if now > began + READY_TIMEOUT_S:
            told = progress(waited_for, api)
            raise ScriptError(f"not ready after {READY_TIMEOUT_S:.0f} s: {told}; see {cluster.session}/logs")
        if now > spoke + QUIET_S and waited_for != said:
            print(f"Still starting, {now - began:.0f} s: {progress(waited_for, api)}", file=sys.stderr, flush=True)
            spoke, said = now, waited_for


def progress(waited_for: str, api: ServeApi) -> str:
    """How far a start is, in words: what is waited for, why HAProxy does not run, if so, and what Serve tells."""
    alert = haproxy.alert()
    return "; ".join([waited_for, *([f"HAProxy: {alert}"] if alert else []), api.progress()])


def wait_until_settled(stop: threading.Event) -> None:
    """Wait until HAProxy, if it is on, sends requests straight to a replica, and has done so for a while.

    Until then the first answers come by way of Serve's own proxy, and each change of the configuration reloads HAProxy,
    which cuts the connections that clients keep open.
    """
    if os.environ["RAY_SERVE_ENABLE_HA_PROXY"] != "1":
        return
    give_up = time.monotonic() + READY_TIMEOUT_S
    while not stop.wait(0.1) and time.monotonic() < give_up:
        file = haproxy.configuration()
        text = "" if file is None else file.read_text(encoding="utf-8")
        if file is not None and "server SERVE_REPLICA" in text:
            rest = file.stat().st_mtime + SETTLED_S - time.time()
            if rest <= 0 or stop.wait(rest):
                if not text.startswith(front.MARK):
                    why = f"see {file.parent}/*.stderr.log" if os.environ.get(BINARY) else f"there is no {launcher()}"
                    print(PLAIN_FRONT.format(why=why), file=sys.stderr, flush=True)
                return


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
    if child.exitcode != 0:
        raise ScriptError(f"reading the configuration and its models ended by {child.exitcode}; see above")


def _check(arguments: dict[str, Any], pipe: Any) -> None:
    from graph.agreement import agree
    from graph.config import parse

    try:
        agree(parse(arguments))
    except ConfigurationError as err:
        pipe.send(str(err))
