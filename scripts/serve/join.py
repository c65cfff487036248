"""Joins this machine to the cluster of a running server, and serves on it.

    ensemble join 10.0.0.1 --host-address 10.0.0.2

The head of the cluster runs `ensemble serve --host-address 10.0.0.1 configs/cluster.yaml`. This machine gets its
own HAProxy, on the same ports, and a node of Ray, on which Serve places replicas; both run until Ctrl-C. It
needs Ray's token, a copy of the head's ~/.config/ensemble-serving/ray_token, the same code, and the same models at
the same path.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path

from deployments.contract import clock
from deployments.contract.hosts import HOST_ADDRESS, RAY_METRICS_SETTING
from scripts import configuration
from scripts.errors import ScriptError, errors_in_one_line
from scripts.flags import described
from scripts.serve import machines
from scripts.serve.cluster import below, clear_leftovers, end_all_below, ended, guarded, python, start_ray
from scripts.serve.environment import TOKEN_FILE, TOKEN_PATH, check_propagators, raise_file_limit, set_up
from scripts.serve.exposure import certificate_named, check_exposure
from scripts.serve.folder import private_folder
from scripts.serve.front import in_front, needed_ports
from scripts.serve.haproxy import HAProxy
from scripts.serve.ports import check_loopback, check_ports, wanted
from scripts.serve.server import LOOK_EVERY_S, health, say_stopping, stop_signals

JOINED = """Joined the cluster of {address} as {host}. Serve places replicas here as far as the configuration has them:
`num_replicas` of each deployment is for all machines together. Metrics: http://{metrics}/metrics"""
LOST = "this machine is no longer in the cluster: the head at {address} has stopped or can't be reached, or see"
READY = "Ready: {url} answers by a replica of this machine. Stop: Ctrl-C"
NOT_READY = "No replica of this machine answers at {url} any more"


def join(address: str) -> None:
    """Serve on this machine until Ctrl-C or SIGTERM, as one of the cluster whose head has this address and port.

    Raises:
        ScriptError: this machine can't join, or is no longer in the cluster.
        ConfigurationError: the head's application can't be built here.
    """
    require_token()
    check_propagators()
    set_up()
    clock.start()
    raise_file_limit()
    config, common = machines.published(address)
    machines.listen_on_own_address(config)
    certificate = certificate_named(config)
    # Whether keys are required was decided at the head.
    check_exposure(config, True, certificate is not None)
    different, mixed = machines.differences(common, machines.common(config))
    if mixed:
        print(f"WARNING: {mixed}; {machines.SAME_LABELS}", flush=True)
    if different:
        raise ScriptError(f"{'; '.join(different)}. Every machine must have these alike")
    checks = configuration.Checks(config)
    checks.wait_for_arguments()
    checks.wait()
    http, _, _, ray_metrics = wanted(config)
    os.environ[RAY_METRICS_SETTING] = str(ray_metrics.number)
    url = f"http{'s' if certificate else ''}://{http}"
    with stop_signals() as stop, guarded(), private_folder() as folder:
        clear_leftovers()
        check_loopback()
        check_ports(*needed_ports(config))
        with in_front(folder, config, certificate) as haproxy, joined(folder, address, haproxy) as logs:
            watch(f"{LOST.format(address=address)} {logs}", haproxy, url, stop)
            say_stopping()


def require_token() -> None:
    """Raise ScriptError unless this machine has the cluster's token; it must not make one of its own."""
    file = Path(os.environ.get(TOKEN_PATH, TOKEN_FILE))
    if "RAY_AUTH_TOKEN" not in os.environ and not file.exists():
        raise ScriptError(f"there is no {file}: copy the head's to this place, readable by this user alone")


@contextmanager
def joined(folder: Path, address: str, haproxy: HAProxy | None) -> Iterator[Path]:
    """Run a node of Ray in the cluster whose head has this address, with its files in a private folder.

    In the end requests that have come are answered, and every process ends.

    Yields:
        The folder of the logs.

    Raises:
        ScriptError: this machine can't join.
    """
    try:
        node = start_ray(folder, python(folder), f"--join={address}")
        print(JOINED.format(address=address, host=os.environ[HOST_ADDRESS], metrics=node["metrics"]), flush=True)
        yield Path(node["session"]) / "logs"
    finally:
        try:
            if haproxy is not None:
                haproxy.finish()
        finally:
            end_all_below()


def watch(lost: str, haproxy: HAProxy | None, url: str, stop: threading.Event) -> None:
    """Report whether this machine answers, until it is to stop.

    Raises:
        ScriptError: it is no longer in the cluster, with the words for this.
    """
    vital, was_ready = below(["raylet"]), False
    while not stop.wait(LOOK_EVERY_S):
        if ended(vital):
            raise ScriptError(lost)
        if haproxy is not None:
            haproxy.renew()
        if (ready := is_ready(url)) != was_ready:
            print((READY if ready else NOT_READY).format(url=url), flush=True)
            was_ready = ready


def is_ready(url: str) -> bool:
    """Tell whether a replica of the ingress on this machine is ready."""
    try:
        return health(url).status == HTTPStatus.OK
    except OSError:
        return False


def main() -> None:
    """Parse the command line and join."""
    parser = described(__doc__)
    parser.add_argument("address", help="the head's address; its port, if it is not 6379, after a colon")
    parser.add_argument(
        "--host-address",
        metavar="IP",
        required=HOST_ADDRESS not in os.environ,
        help="this machine's address, for clients and for the other machines",
    )
    args = parser.parse_args()
    with errors_in_one_line():
        machines.enter(args.host_address)
        join(machines.head_address(args.address))


if __name__ == "__main__":
    main()
