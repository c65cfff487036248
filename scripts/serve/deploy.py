"""Deploys a changed configuration to a running server, and waits until the change is in force.

    ensemble deploy my.yaml

The command does the work of `serve deploy`. It also checks the configuration and its models first, refuses changes that
need a restart, and reports a `user_config` that a replica refuses. If the server has other ports,
`source` the file that `ensemble serve` names first.
"""

import os
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import psutil

from deployments.contract.hosts import LOOPBACK
from deployments.contract.names import REFUSED
from scripts import configuration
from scripts.errors import ScriptError, errors_in_one_line
from scripts.flags import described
from scripts.serve.api import SAY_EVERY_S, ServeApi, Waiting
from scripts.serve.cluster import running
from scripts.serve.environment import check_propagators, clients_file, read_clients_file
from scripts.serve.exposure import check_keys
from scripts.serve.folder import check_space, parent
from scripts.serve.logs import Logs
from scripts.serve.ports import GRPC_PORT, HTTP_PORT, wanted
from scripts.serve.resources import Resources, check_placement

DASHBOARD, SESSION = "RAY_DASHBOARD_ADDRESS", "ENSEMBLE_RAY_SESSION"
# The server, as `Running` describes it, in JSON.
SERVER = "ENSEMBLE_SERVER"
DEFAULTS = {"http_options.host": LOOPBACK, "http_options.port": HTTP_PORT, "grpc_options.port": GRPC_PORT}
RESTART = "start `ensemble serve` with it anew"
TIMEOUT_S, LOOK_EVERY_S = 300.0, 0.2


class Running(msgspec.Struct):
    """What a deployment must know of the server.

    Attributes:
        mark: of the server's process; empty if it is unknown.
        host: where the server listens.
        without_keys: whether other machines need no key.
        resources: the CPUs and the memory of the server's machine; None where other machines may join.
        keeps: what the server keeps to its end, by path: from its file, and as flags of the command changed it.
    """

    mark: str = ""
    host: str = LOOPBACK
    without_keys: bool = False
    resources: Resources | None = None
    keeps: dict[str, list[Any]] = {}

    def check(self) -> None:
        """Raise ScriptError if the server has ended."""
        if self.mark and not running(self.mark):
            raise ScriptError("the server has ended; start it again by ensemble serve")

    def print_name(self) -> None:
        """Print which server gets the configuration, if its process can be seen and its folder can be read."""
        if self.mark and (process := running(self.mark)):
            with suppress(psutil.Error):
                print(f"deploying to the server of process {process.pid}, started in {process.cwd()}", file=sys.stderr)


def deploy(file: Path) -> None:
    """Deploy a configuration, and wait until it is in force.

    Raises:
        ScriptError: no server runs, it ends meanwhile, Serve can't deploy it, a replica refuses its `user_config`, it
            changes what the server keeps to its end, or other machines could use the service without a key.
        ConfigurationError: the application can't be built.
    """
    check_propagators()
    document = configuration.load(file)
    config: dict[str, Any] = document.value
    checks = configuration.Checks(config, document)
    checks.wait_for_arguments()
    checks.wait()
    if SESSION not in os.environ:
        port = wanted(config)[0].number
        try:
            os.environ |= read_clients_file(port)
        except OSError as err:
            raise ScriptError(
                f"no server of this user listens on port {port}: there is no {clients_file(port)}"
            ) from err
    server = msgspec.json.decode(os.environ.get(SERVER, "{}"), type=Running)
    server.check()
    server.print_name()
    check_space(parent())
    if server.resources is not None:
        with document.locating():
            check_placement(config, server.resources)
    check_kept(config, server.keeps)
    check_keys(config, server.host, server.without_keys)
    api, logs = ServeApi(os.environ[DASHBOARD]), Logs(Path(os.environ[SESSION]))
    # What was logged before is not about this configuration.
    logs.skip()
    api.deploy(config)
    give_up, waiting = time.monotonic() + TIMEOUT_S, Waiting("Waiting", SAY_EVERY_S)
    while not is_in_force(config, api.applications()):
        if failure := api.failure():
            raise ScriptError(failure)
        server.check()
        if time.monotonic() > give_up:
            raise ScriptError(f"not in force after {TIMEOUT_S:.0f} s: {api.progress()}")
        waiting.print(api.progress)
        time.sleep(LOOK_EVERY_S)
    if refused := [record.message for record in logs.new() if record.message.startswith(REFUSED)]:
        raise ScriptError("; ".join(refused))
    print(f"{file} is in force.")


def kept(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a Serve config that are read once, at the server's start, by path; `None` is no value."""
    options = {
        f"{section}.{name}": value
        for section in ("http_options", "grpc_options")
        for name, value in (config.get(section) or {}).items()
    }
    by_serve = configuration.why_serve(config)
    found = {**DEFAULTS, **options, "front": "HAProxy" if by_serve is None else "Serve's proxy"}
    if by_serve is not None:
        return found
    [application] = config["applications"]
    # HAProxy's rules are made of them.
    protocols = (application.get("args") or {}).get("protocols") or None
    return {
        **found,
        "applications.0.name": application.get("name", "default"),
        "applications.0.args.protocols": protocols,
    }


def keeps(written: Mapping[str, Any], served: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Pair by path the values that a server keeps: from its file, and as flags of the command changed them."""
    return {name: [written.get(name), served.get(name)] for name in {**written, **served}}


def check_kept(config: Mapping[str, Any], keeps: Mapping[str, list[Any]]) -> None:
    """Raise ScriptError if a Serve config changes what a server keeps, or ends what it serves."""
    if not config.get("applications"):
        raise ScriptError("it has no application, and would end the served application; Ctrl-C stops the server")
    if not keeps:
        return
    wanted = kept(config)
    if wanted["front"] not in keeps["front"]:
        why = configuration.why_serve(config) or "front: direct"
        raise ScriptError(f"{keeps['front'][-1]} takes requests until the server ends, and {why}; {RESTART}")
    changed = [
        f"{name} is {_text(wanted.get(name))} in the file and {_text(served[-1])} until the server ends"
        for name in {**keeps, **wanted}
        if wanted.get(name) not in (served := keeps.get(name, [None]))
    ]
    if changed:
        raise ScriptError(f"{'; '.join(changed)}; {RESTART}")


def _text(value: Any) -> str:
    return "not set" if value is None else repr(value)


def is_in_force(config: Mapping[str, Any], applications: list[dict[str, Any]]) -> bool:
    """Tell whether Serve reports that all of a configuration runs, with these arguments, and nothing else."""
    wanted = {each.get("name", "default"): each.get("args") or {} for each in config.get("applications") or []}
    running = {
        each["name"]: (each.get("deployed_app_config") or {}).get("args") or {}
        for each in applications
        if each["status"] == "RUNNING"
    }
    return running == wanted and len(applications) == len(wanted)


def main() -> None:
    """Parse the command line and deploy."""
    parser = described(__doc__)
    parser.add_argument("config", type=Path, help="a Serve config file")
    with errors_in_one_line():
        deploy(parser.parse_args().config)


if __name__ == "__main__":
    main()
