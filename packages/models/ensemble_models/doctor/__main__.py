"""Checks this machine and a configuration; each line that is not `ok` ends with a remedy.

    ensemble doctor
    ensemble doctor configs/colocated.yaml
    ensemble doctor --cluster --host-address 10.0.0.1 configs/cluster.yaml      # before it becomes a head
    ensemble doctor --join 10.0.0.1 --host-address 10.0.0.2                     # before it joins

The command checks versions, the working directory, HAProxy, cores, instructions, memory, the private folder, the token,
ports, the configuration and its models. It also times the versions of each model, and sends one image through each node
in this process. The exit status is 1 if the configuration can't be served.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from ensemble_models.doctor import Finding, failure
from scripts.flags import described
from scripts.shipped import shipped

COLOURS = {"ok": "green", "look": "yellow", "wrong": "bold red"}


def examine(config: dict[str, Any]) -> Iterator[Finding]:
    """Check everything about this machine and a Serve config."""
    from deployments.contract.errors import ConfigurationError
    from ensemble_models.doctor import machine, software
    from scripts.configuration import check_schema, ours, why_serve
    from scripts.serve.environment import check_propagators, switches
    from scripts.serve.front import needed_ports

    yield software.installed()
    yield software.folder(os.getcwd())
    if (found := failure(check_propagators)) is not None:
        yield found
        return
    try:
        check_schema(config)
    except ConfigurationError as err:
        yield Finding("wrong", f"configuration: {err}", "Serve refuses it: correct what it names")
        return
    if why_serve(config) is None:
        yield software.haproxy()
    needed = machine.reserved(config)
    yield machine.cores(needed["num_cpus"])
    yield machine.instructions()
    yield machine.memory(needed["memory"], needed["replicas"])
    yield machine.folder()
    yield machine.token()
    for name, value in switches().items():
        os.environ.setdefault(name, value)
    yield from machine.ports(needed_ports(config))
    yield software.names(config)
    for application in ours(config):
        yield from software.application(application, config)


def examine_machine(host_address: str | None, role: dict[str, Any] | str) -> Iterator[Finding]:
    """Check this machine in a cluster: as the head that serves a config, or to join the head at an address.

    Without a host address, the environment has it.
    """
    from ensemble_models.doctor import cluster

    yield (own := cluster.address(host_address))
    if own.verdict == "wrong":
        return
    if isinstance(role, str):
        for found in cluster.joining(role):
            yield from [found] if isinstance(found, Finding) else examine(found)
        return
    yield from cluster.head(role)
    yield from examine(role)


def main() -> None:
    """Parse the command line and check."""
    parser = described(__doc__)
    parser.add_argument(
        "config", type=Path, nargs="?", help="a Serve config file (default: the bundled one); not with --join"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    role = parser.add_mutually_exclusive_group()
    role.add_argument("--cluster", action="store_true", help="check this machine as the head of a cluster")
    role.add_argument("--join", metavar="HEAD", help="check whether this machine can join the head with this address")
    parser.add_argument("--host-address", metavar="IP", help="this machine's address in its cluster")
    args = parser.parse_args()
    if args.host_address and not (args.cluster or args.join):
        parser.error("--host-address is for --cluster and --join")
    if args.join and args.config:
        parser.error(f"--join checks the configuration that the head publishes; leave out {args.config}")

    from scripts import configuration
    from scripts.errors import errors_in_one_line

    found, console = [], Console(soft_wrap=True)
    with errors_in_one_line():
        given = args.join or configuration.read(args.config or shipped("serve_config.yaml"))
        in_cluster = args.cluster or args.join
        for finding in examine_machine(args.host_address, given) if in_cluster else examine(given):
            found.append(finding)
            if not args.json:
                line = Text(f"{finding.verdict:6}", COLOURS[finding.verdict]) + Text(finding.what)
                console.print(line + Text(f" → {finding.remedy}" if finding.remedy else ""))
    if args.json:
        print(json.dumps([finding._asdict() for finding in found]))
    sys.exit(1 if any(finding.verdict == "wrong" for finding in found) else 0)


if __name__ == "__main__":
    main()
