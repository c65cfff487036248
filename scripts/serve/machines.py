"""The machines of a cluster: this machine's address, and the facts that all of them must have in common."""

import hashlib
import ipaddress
import json
import multiprocessing
import os
import platform
import subprocess
import sys
from collections.abc import Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from deployments.contract.hosts import CLUSTER_PORT, DEFAULT_CLUSTER_PORT, HOST_ADDRESS, is_in_cluster
from deployments.entry_points import COMBINERS, FEATURES, MEMBERS, PROTOCOLS, REPOSITORIES
from deployments.ray_internals.import_path import append_working_directory
from scripts.configuration import ours
from scripts.errors import ScriptError
from scripts.serve.cluster import marked
from scripts.serve.ports import LAST_PORT

# A host of `http_options` that is every address of a machine, and so right for each machine.
EVERY_ADDRESS = ("0.0.0.0", "::")  # noqa: S104
ASK_S = 30.0
# What machines may differ in: a few images in a thousand then have another label on one of them.
ARITHMETIC = "arithmetic of the CPU"
SAME_LABELS = (
    "for the same labels set ONEDNN_MAX_CPU_ISA=AVX2 on each machine and `inference_precision: f32` for each member, "
    "which costs speed, or use one kind of CPU"
)
# The packages that decide what is answered, and how machines talk to each other.
OURS, SERVING, CODE = "ensemble-serving", ("graph", "deployments", "ensemble_serving"), {".py", ".binpb"}
# The entry points of what distributions bring to a server.
GROUPS = (MEMBERS, COMBINERS, FEATURES, PROTOCOLS, REPOSITORIES)

OTHERS = "On every further machine: ensemble join {address} --host-address ITS_ADDRESS (docs/cluster.md)"


def enter(address: str | None, port: int | None = None) -> None:
    """Make this machine one of a cluster, for all processes that this one starts.

    The address under which the other machines reach it, and the port of the head, are else what the environment says.

    Raises:
        ScriptError: the address is none by which other machines could reach this one, the port is no number, or is
            given without an address, or Ray's token is off.
    """
    if address is not None:
        os.environ[HOST_ADDRESS] = address
    if port is not None:
        os.environ[CLUSTER_PORT] = str(port)
    if not is_in_cluster():
        if port is not None:
            raise ScriptError("--cluster-port is for a cluster: name this machine's address, too, by --host-address")
        return
    given = os.environ[HOST_ADDRESS]
    try:
        found = ipaddress.ip_address(given)
    except ValueError as err:
        raise ScriptError(f"--host-address: {given!r} is no IP address; `ip address` lists this machine's") from err
    if found.is_loopback or found.is_unspecified:
        raise ScriptError(f"--host-address: other machines can't reach this one at {given}; `ip address` lists others")
    port_given = os.environ.get(CLUSTER_PORT, str(DEFAULT_CLUSTER_PORT))
    if not port_given.isdecimal() or not 1 <= int(port_given) <= LAST_PORT:
        raise ScriptError(f"{CLUSTER_PORT} is {port_given!r}; set it to the number of a port")
    if os.environ.get("RAY_AUTH_MODE", "token") != "token":
        raise ScriptError("a cluster of several machines needs Ray's token; unset RAY_AUTH_MODE")


def listen_on_own_address(config: dict[str, Any]) -> None:
    """Let a Serve config listen on this machine's address in its cluster, or on every address if the config says so."""
    if is_in_cluster() and config["http_options"]["host"] not in EVERY_ADDRESS:
        config["http_options"]["host"] = os.environ[HOST_ADDRESS]


def head_address(given: str) -> str:
    """Add the default port to the address of a cluster's head, if the address has no port."""
    host, _, port = given.rpartition(":")
    return given if host and port.isdecimal() else f"{given}:{DEFAULT_CLUSTER_PORT}"


def common(config: Mapping[str, Any]) -> dict[str, str]:
    """Digest by name each thing that must be alike on every machine to serve the applications of a config."""
    # What reading the models loads would stay in this process; a fork of it would hang where a thread holds a lock.
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        models = pool.submit(_models, config).result()
    versions = {name: metadata.version(name) for name in ("ray", "openvino")}
    return {"Python": platform.python_version(), **versions, **_code(), **models}


def publish(address: str, config: Mapping[str, Any]) -> None:
    """Publish a Serve config at the head of a cluster, with the facts that all machines must have in common."""
    _noticeboard("publish", address, json.dumps({"config": config, "common": common(config)}))


def published(address: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Read what the head of a cluster publishes: its Serve config, and everything that machines must have alike.

    As with a config that is read, this process then imports what it names as Ray's workers do.

    Raises:
        ScriptError: nothing is there, or it does not take this machine's token.
    """
    append_working_directory()
    document = json.loads(_noticeboard("read", address))
    return document["config"], document["common"]


def differences(theirs: Mapping[str, str], mine: Mapping[str, str]) -> tuple[list[str], str]:
    """Return a sentence for each difference from the head of the cluster, and one about CPUs, empty if they are alike.

    The first ones keep this machine from joining; the last one is a warning.
    """
    found = {
        name: f"{name} differs: {theirs.get(name, 'nothing')} on the head, {mine.get(name, 'nothing')} here"
        for name in {**theirs, **mine}
        if theirs.get(name) != mine.get(name)
    }
    mixed = found.pop(ARITHMETIC, "")
    return list(found.values()), f"{mixed}, and may label some images differently" if mixed else ""


def _noticeboard(action: str, address: str, document: str = "") -> str:
    command = [sys.executable, "-P", "-m", "deployments.ray_internals.kv", action, address]
    try:
        done = subprocess.run(  # noqa: S603
            command, input=document, capture_output=True, text=True, timeout=ASK_S, env=marked(), start_new_session=True
        )
    except subprocess.TimeoutExpired as err:
        raise ScriptError(f"nothing answers at {address}; is `ensemble serve --host-address` running there?") from err
    if done.returncode != 0:
        problem = (done.stderr.strip().splitlines() or ["it ended without a message"])[-1]
        raise ScriptError(f"the head of the cluster, {address}, can't be used: {problem}")
    return done.stdout


def _code() -> dict[str, str]:
    """Digest the files that serve, for this project and for each other distribution that brings something."""
    packages = {OURS: {*SERVING}}
    for entry in (entry for group in GROUPS for entry in metadata.entry_points(group=group)):
        packages.setdefault(entry.dist.name if entry.dist else entry.name, set()).add(entry.module.partition(".")[0])
    names = {OURS: "this project's code"}
    return {names.get(name, f"the code of {name}"): _digest(sorted(found)) for name, found in packages.items()}


def _digest(packages: Iterable[str]) -> str:
    digest = hashlib.sha256()
    for spec in filter(None, map(find_spec, packages)):
        for place in map(Path, spec.submodule_search_locations or [spec.origin or ""]):
            files = [place] if place.is_file() else sorted(file for file in place.rglob("*") if file.suffix in CODE)
            for file in files:
                digest.update(f"{file.relative_to(place.parent)}\0".encode() + file.read_bytes())
    return digest.hexdigest()[:12]


def _models(config: Mapping[str, Any]) -> dict[str, str]:
    from deployments.contract.member import MemberConfig
    from deployments.members.arithmetic import arithmetic
    from deployments.members.local import LocalMember
    from graph.config import parse

    found, members = {}, list[MemberConfig]()
    for application in ours(config):
        parsed = parse(application.get("args") or {})
        members += parsed.nodes
        for member in parsed.nodes:
            if isinstance(member, LocalMember):
                digest = hashlib.sha256(member.file_digests(parsed.model_repository).encode()).hexdigest()[:12]
                found[f"the model of {member.name}"] = digest
    return {ARITHMETIC: arithmetic(members), **found}
