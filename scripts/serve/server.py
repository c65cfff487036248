"""Serves an application in the foreground until it is stopped."""

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec
import psutil

from deployments.contract import clock
from deployments.contract.errors import ConfigurationError
from deployments.contract.hosts import LOOPBACK, RAY_METRICS_SETTING, host_address, is_in_cluster
from deployments.contract.names import INGRESS
from scripts import configuration
from scripts.errors import ScriptError
from scripts.serve import machines, resources
from scripts.serve.api import Answer, ServeApi, Waiting, send
from scripts.serve.cluster import Cluster, clear_leftovers, end_all_below, fork_server, guarded, mark
from scripts.serve.deploy import DASHBOARD, SERVER, SESSION, Running, keeps, kept
from scripts.serve.environment import for_clients, raise_file_limit, set_up, set_variables
from scripts.serve.exposure import certificate_named, check_exposure, has_keys
from scripts.serve.folder import private_folder
from scripts.serve.front import in_front, needed_ports
from scripts.serve.haproxy import HAProxy
from scripts.serve.logs import Logs, Record
from scripts.serve.ports import check_loopback, check_ports, move, wanted
from scripts.shipped import shipped
from scripts.strict_yaml import Document

READY_TIMEOUT_S = 300.0
STOP_TIMEOUT_S = 20.0
LOOK_EVERY_S = 1.0
# What Serve's controller logs of a deployment that lacks a replica, and what is printed afterwards.
UNHEALTHY, HEALTHY = "UNHEALTHY", "every deployment is healthy again"
# A start that takes longer prints what it waits for, and again whenever that has changed.
QUIET_S = 15.0
# The feature that has something to see at `/`.
READY = """Ready. Try:

    curl {flags}-H 'Content-Type: image/jpeg' --data-binary @{sample} {url}/classify

{page}Documentation: {url}/docs   gRPC: {grpc}   Models: {models}   Stop: Ctrl-C
Logs: {logs}   Metrics: {metrics}
For `serve status`, `ensemble deploy` and handles in another shell:

    source {file}
"""


@contextmanager
def stop_signals() -> Iterator[threading.Event]:
    """Make an event that Ctrl-C, SIGTERM or a closed terminal sets; a second signal ends every process at once.

    A closed terminal does not stop a server under `nohup`.
    """
    stop = threading.Event()

    def handle(_signal: int, _frame: FrameType | None) -> None:
        if stop.is_set():
            end_all_below(psutil.Process.kill)
            os._exit(1)
        stop.set()

    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def serve(
    config_file: Path,
    whole_dashboard: bool = False,
    without_keys: bool = False,
    ports_from: int | None = None,
) -> None:
    """Serve until Ctrl-C or SIGTERM.

    Args:
        config_file: a Serve config.
        whole_dashboard: whether Ray's dashboard has all its pages.
        without_keys: whether other machines may reach it without a key.
        ports_from: the first of the four ports to listen on; None for the configuration's.

    Raises:
        ScriptError: it can't be served, or the cluster has ended.
        ConfigurationError: the application can't be built.
    """
    set_variables()
    clock.start()
    raise_file_limit()
    document = configuration.load(config_file)
    config: dict[str, Any] = document.value
    checks = configuration.Checks(config, document)
    with stop_signals() as stop, guarded(), private_folder() as folder, fork_server(folder) as python:
        checks.wait_for_arguments()
        if stop.is_set():
            return
        there, written = check_resources(document), kept(config)
        change(config, ports_from)
        certificate = certificate_named(config)
        check_exposure(config, without_keys, certificate is not None)
        mine, http = mark(psutil.Process()), wanted(config)[0]
        server = Running(mine, http.host, without_keys, there, keeps(written, kept(config)))
        clear_leftovers()
        set_up(folder)
        check_loopback()
        check_ports(*needed_ports(config))
        with (
            in_front(folder, config, certificate) as haproxy,
            running(folder, whole_dashboard, haproxy, python) as cluster,
            for_clients(http.number, {**variables(cluster), SERVER: msgspec.json.encode(server).decode()}) as file,
        ):
            checks.wait()
            if is_in_cluster():
                machines.publish(cluster.address, config)
            api = ServeApi(cluster.dashboard)
            api.deploy(config, stop)
            is_json = (config.get("logging_config") or {}).get("encoding") == "JSON"
            logs, url = Logs(cluster.session, is_json), f"http{'s' if certificate else ''}://{http}"
            wait_until_ready(api, cluster, logs, url, stop)
            if not stop.is_set():
                greet(config, url, certificate, file, logs.folder)
                if is_in_cluster():
                    print(machines.OTHERS.format(address=cluster.address), flush=True)
            watch(cluster, haproxy, logs, api, stop)
            say_stopping()


def change(config: dict[str, Any], ports_from: int | None) -> None:
    """Change a Serve config by the flags of the command line, and set where it listens."""
    if ports_from is not None:
        move(config, ports_from)
    # Serve's own default is every interface.
    config["http_options"] = {"host": LOOPBACK, **(config.get("http_options") or {})}
    machines.listen_on_own_address(config)
    os.environ[RAY_METRICS_SETTING] = str(wanted(config)[3].number)


def variables(cluster: Cluster) -> dict[str, str]:
    """Return the variables by which others find the cluster."""
    return {"RAY_ADDRESS": cluster.address, DASHBOARD: cluster.dashboard, SESSION: str(cluster.session)}


def check_resources(document: Document) -> resources.Resources | None:
    """Check that Ray can place every replica of a Serve config; return its resources, or None where machines may join.

    Raises:
        ConfigurationError: a replica finds no place.
    """
    there = resources.available()
    try:
        with document.locating():
            resources.check_placement(document.value, there)
    except ConfigurationError as err:
        if not is_in_cluster():
            raise
        print(f"warning: {err}; machines that join may have more", file=sys.stderr, flush=True)
    return None if is_in_cluster() else there


def watch(cluster: Cluster, haproxy: HAProxy | None, logs: Logs, api: ServeApi, stop: threading.Event) -> None:
    """Restart ended processes, and print replicas' warnings and when all are healthy again, until it is to stop.

    Raises:
        ScriptError: the cluster has ended.
    """
    is_healthy = True
    while not stop.wait(LOOK_EVERY_S):
        cluster.check()
        if haproxy is not None:
            haproxy.renew()
        if any(UNHEALTHY in record.message for record in logs.print_new()):
            is_healthy = False
        elif not is_healthy and api.are_healthy():
            logs.print(Record("INFO", "server", str(os.getpid()), HEALTHY, ""))
            is_healthy = True


def say_stopping() -> None:
    """Print that the end has begun; nobody may read it any more."""
    with suppress(OSError):
        print("Stopping.", flush=True)


@contextmanager
def running(folder: Path, whole_dashboard: bool, haproxy: HAProxy | None, python: Path) -> Iterator[Cluster]:
    """Run a cluster; in the end let its applications answer every waiting request, and end every process."""
    cluster, are_applications_ended = Cluster(folder, whole_dashboard, python), False
    try:
        yield cluster
    finally:
        # Should a node hang, every process is ended all the same.
        try:
            if haproxy is not None:
                haproxy.stop_accepting()
            if cluster.lost() is None:
                with suppress(OSError):
                    ServeApi(cluster.dashboard).shut_down(STOP_TIMEOUT_S)
                    are_applications_ended = True
        finally:
            if haproxy is not None:
                haproxy.end()
            cluster.end(are_applications_ended)


def greet(config: dict[str, Any], url: str, certificate: tuple[Path, Path] | None, file: Path, logs: Path) -> None:
    """Print that it is ready, and how to send a request."""
    from deployments.repository.repository import DEFAULT_ROOT

    key = '-H "Authorization: Bearer $ENSEMBLE_API_KEY" ' if has_keys(config) else ""
    trust = f"--cacert {certificate[0]} " if certificate else ""
    models = {(each.get("args") or {}).get(configuration.REPOSITORY, DEFAULT_ROOT) for each in config["applications"]}
    print(
        READY.format(
            flags=f"{key}{trust}",
            sample=shipped("tests/cat.jpg"),
            url=url,
            page=f"Page: {url}/   " if has_page(url) else "",
            grpc=wanted(config)[1],
            models=", ".join(map(str, models)),
            file=file,
            logs=logs,
            metrics=f"http://{host_address()}:{os.environ[RAY_METRICS_SETTING]}/metrics",
        ),
        flush=True,
    )


def has_page(url: str) -> bool:
    """Tell whether the server has a page at its root."""
    try:
        return send(f"{url}/", timeout_s=5).status == HTTPStatus.OK
    except OSError:
        return False


def health(url: str) -> Answer:
    """Ask the server at this root about its readiness; raise OSError if it does not answer."""
    return send(f"{url}/v2/health/ready", timeout_s=5)


def wait_until_ready(api: ServeApi, cluster: Cluster, logs: Logs, url: str, stop: threading.Event) -> None:
    """Wait until every member has answered once, and Serve knows it; print the missing members every few seconds.

    Raises:
        ScriptError: the deployment failed, or took longer than `READY_TIMEOUT_S`.
    """
    began, waiting = time.monotonic(), Waiting("Still starting", QUIET_S)

    def waited_for() -> str:
        return f"{answer}; {api.progress()}"

    while not stop.wait(0.1):
        # Before what the controller logs of it, which is the same.
        if failure := api.failure():
            raise ScriptError(f"{failure}; see {logs.folder}")
        logs.print_new()
        try:
            ready = health(url)
            # A replica answers a moment before Serve has its first report of health.
            if ready.status == HTTPStatus.OK and api.runs(INGRESS):
                return
            answer = f"{url} answers {ready.status}: {ready.text[:500]}"
        except OSError as err:
            answer = f"{url} does not answer yet ({err})"
        cluster.check()
        if time.monotonic() > began + READY_TIMEOUT_S:
            raise ScriptError(f"not ready after {READY_TIMEOUT_S:.0f} s: {waited_for()}; see {logs.folder}")
        waiting.print(waited_for)
