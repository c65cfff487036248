"""Checks of a machine that is to be one of a cluster: its head, or one that joins."""

import copy
import io
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

from deployments.contract.hosts import CLUSTER_PORT, HOST_ADDRESS, LOOPBACK, cluster_port
from deployments.contract.names import INGRESS
from ensemble_models.doctor import Finding, failure
from scripts.configuration import why_serve
from scripts.errors import ScriptError
from scripts.serve import machines
from scripts.serve.environment import TOKEN_FILE, TOKEN_PATH, set_variables
from scripts.serve.exposure import CERTIFICATE, CERTIFICATE_KEY, certificate_named, check_exposure
from scripts.serve.ports import Port, check_ports


def address(given: str | None) -> Finding:
    """Check the address under which other machines reach this one."""
    if (found := failure(partial(machines.enter, given), "cluster: ")) is not None:
        return found
    own = os.environ.get(HOST_ADDRESS)
    if own is None:
        what = "cluster: without an address this machine serves on loopback, where no other machine reaches it"
        return Finding("wrong", what, f"--host-address IP, or {HOST_ADDRESS} in the environment")
    with socket.socket() as probe:
        found = failure(
            partial(probe.bind, (own, 0)), f"cluster: {own} is no address of this machine: ", "see `ip address`"
        )
    return found or Finding("ok", f"cluster: other machines reach this one at {own}")


def head(config: dict[str, Any]) -> Iterator[Finding]:
    """Check a cluster's head; its configuration is changed as `ensemble serve` does."""
    config["http_options"] = {"host": LOOPBACK, **(config.get("http_options") or {})}
    machines.listen_on_own_address(config)
    joined_at = Port(os.environ[HOST_ADDRESS], cluster_port(), CLUSTER_PORT)
    remedy = f"{CLUSTER_PORT} in the environment, here and for serve"
    is_free = Finding("ok", f"cluster: port {joined_at.host}:{joined_at.number} is free for machines that join")
    yield failure(partial(check_ports, joined_at), "cluster: ", remedy) or is_free
    yield exposure(config)
    yield from placement(config)


def exposure(config: Mapping[str, Any]) -> Finding:
    """Check that only clients with keys can use the service, which other machines reach."""
    try:
        certificate = certificate_named(dict(config))
        # What it prints are the warnings of a start.
        with redirect_stdout(io.StringIO()):
            check_exposure(copy.deepcopy(dict(config)), False, certificate is not None)
    except ScriptError as err:
        what, _, remedy = str(err).partition(". ")
        return Finding("wrong", f"cluster: {what}", remedy or "docs/security.md has the settings of TLS")
    if certificate is None:
        remedy = f"{CERTIFICATE} and {CERTIFICATE_KEY} in the environment of each machine (docs/security.md)"
        return Finding("look", "cluster: clients need a key, which travels unencrypted", remedy)
    return Finding("ok", "cluster: clients need a key, which travels encrypted")


def placement(config: Mapping[str, Any]) -> Iterator[Finding]:
    """Check that every machine gets HAProxy and replicas of each node."""
    if (why := why_serve(dict(config))) is not None:
        yield Finding("wrong", f"cluster: machines that join have no HAProxy: {why}", "args: {front: direct}")
    for application in config.get("applications") or []:
        if (application.get("args") or {}).get("edges") == "handle":
            what = "cluster: with `edges: handle` batches go to any machine, and take milliseconds longer"
            yield Finding("look", what, "args: {edges: direct}")
        deployments = {each.get("name"): each for each in application.get("deployments") or []}
        alone = [str(name) for name, each in deployments.items() if not each.get("max_replicas_per_node")]
        if INGRESS not in deployments or INGRESS in alone:
            what = f"cluster: nothing spreads the replicas of {INGRESS}, and a machine without one answers 503"
            yield Finding("wrong", what, "max_replicas_per_node: 1 and num_replicas, as configs/cluster.yaml has them")
        elif alone:
            what = f"cluster: a machine may have no replica of {', '.join(alone)}, and its batches go to others"
            yield Finding("look", what, "max_replicas_per_node: 1, as configs/cluster.yaml has it")
        else:
            yield Finding("ok", "cluster: replicas are spread over the machines")


def token() -> Finding:
    """Look for Ray's token on a machine that joins; it must be the head's."""
    path = Path(os.environ.get(TOKEN_PATH, TOKEN_FILE))
    if "RAY_AUTH_TOKEN" in os.environ:
        return Finding("ok", "cluster: the token is in RAY_AUTH_TOKEN")
    if not path.exists():
        there = f".config/{TOKEN_FILE.parent.name}/{TOKEN_FILE.name}"
        remedy = f"copy the head's: mkdir -p -m 700 {path.parent} && scp HEAD:{there} {path}"
        return Finding("wrong", f"cluster: there is no {path}", remedy)
    return Finding("ok", f"cluster: the token is in {path}")


def joining(head_address: str) -> Iterator[Finding | dict[str, Any]]:
    """Find what keeps this machine from joining a cluster; last, if nothing does, yield the head's configuration."""
    yield (found := token())
    if found.verdict == "wrong":
        return
    os.environ.setdefault(TOKEN_PATH, str(TOKEN_FILE))
    set_variables()
    try:
        config, common = machines.published(machines.head_address(head_address))
    except ScriptError as err:
        yield Finding("wrong", f"cluster: {err}", "start the head first, with --host-address; copy its token anew")
        return
    yield Finding("ok", f"cluster: the head at {head_address} answers, and takes this machine's token")
    machines.listen_on_own_address(config)
    different, mixed = machines.differences(common, machines.common(config))
    if mixed:
        yield Finding("look", f"cluster: {mixed}", machines.SAME_LABELS)
    for difference in different:
        yield Finding("wrong", f"cluster: {difference}", "install what the head has, and copy its models")
    if not different:
        yield Finding("ok", "cluster: code, models and their versions are the head's")
    yield config
