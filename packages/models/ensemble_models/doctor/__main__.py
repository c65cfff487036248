"""Checks this machine and a configuration: `ensemble doctor`."""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from deployments.contract.errors import ConfigurationError
from ensemble_models.doctor import Finding, failure, machine, software
from ensemble_models.doctor import cluster as cluster_checks
from ensemble_models.options import FILE, Command, option
from scripts import configuration
from scripts.configuration import check_file, ours, replicas_at_start, why_serve
from scripts.serve.environment import check_propagators, switches
from scripts.serve.front import needed_ports
from scripts.serve.resources import available
from scripts.shipped import shipped
from scripts.strict_yaml import Document

COLOURS = {"ok": "green", "look": "yellow", "wrong": "bold red"}


def examine(config: dict[str, Any], document: Document | None = None) -> Iterator[Finding]:
    """Check everything about this machine and a Serve config; with its document, problems have lines."""
    yield software.installed()
    yield software.folder(os.getcwd())
    if (found := failure(check_propagators)) is not None:
        yield found
        return
    try:
        check_file(config, document)
    except ConfigurationError as err:
        yield from map(software.problem, err.args)
        return
    yield Finding("ok", "configuration: every field is known, and has a value of its type")
    if why_serve(config) is None:
        yield software.haproxy()
    yield machine.placement(config, document)
    yield machine.instructions()
    entries = [entry for each in config["applications"] for entry in each.get("deployments") or []]
    yield machine.memory(sum(map(replicas_at_start, entries)), available().memory)
    yield machine.folder()
    yield machine.token()
    for name, value in switches().items():
        os.environ.setdefault(name, value)
    yield from machine.ports(needed_ports(config))
    for application in ours(config):
        yield from software.application(application, config)


def findings(file: Path, cluster: bool, join: str | None, host_address: str | None) -> Iterator[Finding]:
    """Check this machine with a Serve config file: by itself, as a cluster's head, or to join the head at an address.

    A machine that joins has the head's configuration in place of the file.
    """
    if cluster or join:
        yield (own := cluster_checks.address(host_address))
        if own.verdict == "wrong":
            return
    if join:
        for found in cluster_checks.joining(join):
            yield from [found] if isinstance(found, Finding) else examine(found)
        return
    try:
        document = configuration.load(file)
    except ConfigurationError as err:
        yield from map(software.problem, err.args)
        return
    if cluster:
        yield from cluster_checks.head(document.value)
    yield from examine(document.value, document)


@click.command("doctor", cls=Command)
@click.argument("config", type=FILE, required=False)
@option("--json", "as_json", is_flag=True, help="Print JSON.")
@option("--cluster", is_flag=True, help="Check this machine as the head of a cluster.")
@option("--join", metavar="HEAD", help="Check whether this machine can join the head with this address.")
@option("--host-address", metavar="IP", help="This machine's address in its cluster.")
def main(config: Path | None, as_json: bool, cluster: bool, join: str | None, host_address: str | None) -> None:
    """Check this machine and a configuration; each line that is not `ok` ends with a remedy.

    ensemble doctor
    ensemble doctor configs/colocated.yaml
    ensemble doctor --cluster --host-address 10.0.0.1 configs/cluster.yaml      # before it becomes a head
    ensemble doctor --join 10.0.0.1 --host-address 10.0.0.2                     # before it joins

    CONFIG is a Serve config file (default: the bundled one). The command checks versions, the working directory,
    HAProxy, cores, instructions, memory, the private folder, the token, ports, the configuration and its models. It
    also names a variant of a model that would be faster, and sends one image through each node in this process. The
    exit status is 1 if the configuration can't be served.
    """
    if cluster and join:
        raise click.UsageError("--join: not together with --cluster")
    if host_address and not (cluster or join):
        raise click.UsageError("--host-address is for --cluster and --join")
    if join and config:
        raise click.UsageError(f"--join checks the configuration that the head publishes; leave out {config}")
    found, out = list[Finding](), Console(soft_wrap=True)
    for finding in findings(config or shipped("serve_config.yaml"), cluster, join, host_address):
        found.append(finding)
        if not as_json:
            line = Text(f"{finding.verdict:6}", COLOURS[finding.verdict]) + Text(finding.what)
            out.print(line + Text(f" → {finding.remedy}" if finding.remedy else ""))
    if as_json:
        print(json.dumps([finding._asdict() for finding in found]))
    sys.exit(1 if any(finding.verdict == "wrong" for finding in found) else 0)


if __name__ == "__main__":
    main()
