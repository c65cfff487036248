"""Deploys a changed configuration to a running server, and reports what becomes of it.

    ensemble deploy my.yaml

It does what `serve deploy` does. It also checks the configuration and its models first, waits until it is in force, and
reports a `user_config` that a replica refuses. A server on other ports than the configuration's is found by the
variables in the file that `ensemble serve` names for `source`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deployments.contract.hosts import LOOPBACK
from graph.names import REFUSED
from scripts import configuration
from scripts.errors import ScriptError, errors_in_one_line
from scripts.flags import described
from scripts.serve.api import ServeApi
from scripts.serve.environment import clients_file, read_clients_file
from scripts.serve.exposure import check_keys
from scripts.serve.logs import Logs
from scripts.serve.ports import wanted

DASHBOARD, SESSION = "RAY_DASHBOARD_ADDRESS", "ENSEMBLE_RAY_SESSION"
# Where the server listens, and whether it was started so that other machines need no key: empty if not.
HOST, WITHOUT_KEYS = "ENSEMBLE_HOST", "ENSEMBLE_WITHOUT_KEYS"
TIMEOUT_S, LOOK_EVERY_S = 300.0, 0.2


def deploy(file: Path) -> None:
    """Deploy a configuration, and wait until it is in force.

    Raises:
        ScriptError: no server runs, Serve can't deploy it, a replica refuses its `user_config`, or other machines could
            use the service without a key.
        ConfigurationError: the application can't be built.
    """
    config = configuration.read(file)
    checks = configuration.Checks(config)
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
    check_keys(config, os.environ.get(HOST, LOOPBACK), bool(os.environ.get(WITHOUT_KEYS)))
    api, logs = ServeApi(os.environ[DASHBOARD]), Logs(Path(os.environ[SESSION]))
    # What was logged before is not about this configuration.
    logs.skip()
    api.deploy(config)
    give_up = time.monotonic() + TIMEOUT_S
    while not is_in_force(config, api.applications()):
        if failure := api.failure():
            raise ScriptError(failure)
        if time.monotonic() > give_up:
            raise ScriptError(f"not in force after {TIMEOUT_S:.0f} s: {api.progress()}")
        time.sleep(LOOK_EVERY_S)
    if refused := [record.message for record in logs.new() if record.message.startswith(REFUSED)]:
        raise ScriptError("; ".join(refused))
    print(f"{file} is in force.")


def is_in_force(config: Mapping[str, Any], applications: list[dict[str, Any]]) -> bool:
    """Whether Serve reports that all of a configuration runs; while it reports nothing, that is not known."""
    known = bool(applications) or not config.get("applications")
    return known and all(application["status"] == "RUNNING" for application in applications)


def main() -> None:
    """Parse the command line and deploy."""
    parser = described(__doc__)
    parser.add_argument("config", type=Path, help="a Serve config file")
    with errors_in_one_line():
        deploy(parser.parse_args().config)


if __name__ == "__main__":
    main()
