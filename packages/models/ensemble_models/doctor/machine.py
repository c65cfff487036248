"""Checks of the machine against what the configuration needs."""

import json
import os
import platform
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from deployments.contract.errors import ConfigurationError
from deployments.contract.hosts import LOOPBACK, is_in_cluster
from deployments.contract.names import INGRESS
from deployments.cpus import available_cores, describe_cores
from deployments.ingress.open_inference.metadata import SERVER
from deployments.members.local import LocalMember
from ensemble_models.doctor import Finding, failure
from ensemble_serving.transports import Request, once
from graph.config import EnsembleConfig
from graph.placement import share_of_threads, sharing
from scripts.home import SETTING
from scripts.serve.environment import TOKEN_FILE, TOKEN_PATH
from scripts.serve.folder import check_place, check_space, parent
from scripts.serve.ports import Port, check_loopback, check_ports
from scripts.serve.resources import GIB, available, check_placement, reserved
from scripts.strict_yaml import Document

# How long a server has to name itself, seconds.
ANSWER_WITHIN_S = 2.0
CPU_INFO = Path("/proc/cpuinfo")
# From which share of the cores, as one of so many, it is worth a word that they are unused.
LEAST_UNUSED = 8
# A replica is a Python process with Ray in it: 120 to 250 MB, measured on this project's.
MEMORY_OF_A_REPLICA = 0.25 * GIB
# By the kernel's names: the instructions that speed up a type of number.
INT8 = {"amx_int8": "AMX", "avx512_vnni": "AVX-512 VNNI", "avx_vnni": "AVX VNNI", "i8mm": "I8MM", "asimddp": "SDOT"}
BF16 = {"amx_bf16": "AMX", "avx512_bf16": "AVX-512", "bf16": "BF16"}


def is_own_server(port: Port) -> bool:
    """Check whether this project's server answers at an HTTP port of this machine."""
    host = LOOPBACK if port.host in {"0.0.0.0", "::"} else port.host  # noqa: S104
    try:
        answer = once(f"http://{host}:{port.number}", Request("/v2", method="GET"), timeout_s=ANSWER_WITHIN_S)
        found = json.loads(answer.body)
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and found.get("name") == SERVER


def ports(wanted: Sequence[Port]) -> Iterator[Finding]:
    """Check that this machine reaches itself, and that each port is free, or its server's, which runs already."""
    if failure(partial(check_ports, *wanted)) is not None and is_own_server(wanted[0]):
        yield Finding("ok", f"ports: ensemble-serving runs here already, at {wanted[0].host}:{wanted[0].number}")
        return
    if (found := failure(check_loopback, "loopback: ")) is not None:
        yield found
    for port in wanted:
        yield failure(partial(check_ports, port), "port ") or Finding("ok", f"port {port} is free")


def placement(config: Mapping[str, Any], document: Document | None = None) -> Finding:
    """Compare what replicas reserve with what Ray gets here, as `serve` and `deploy` do."""
    there = available()
    what = f"resources: Ray gets {there} of this machine; the configuration reserves {reserved(config)}"
    try:
        with document.locating() if document else nullcontext():
            check_placement(config, there)
    except ConfigurationError as err:
        found, _, remedy = str(err).rpartition("; ")
        return Finding("wrong", f"configuration: {found}", remedy)
    return Finding("ok", what)


def threads(config: EnsembleConfig, replicas: Mapping[str, int]) -> Finding:
    """Compare the threads of members that compute at the same time, with their replicas by name, with the cores."""
    here, each, is_chosen = available_cores(), {}, False
    for member in config.members:
        if isinstance(member, LocalMember):
            count = replicas.get(member.name if member.placement == "separate" else INGRESS, 1)
            left_open = share_of_threads(here, sharing(config, member), count)
            each[member.name] = count * (member.threads or left_open)
            is_chosen |= count > 1 or member.threads is not None
    # The members of a cascade take turns.
    total = max(each.values(), default=0) if config.in_turn else sum(each.values())
    what = f"threads: {total} of all replicas' members compute at the same time, on {describe_cores()}"
    if total > here and (is_chosen or here == 1):
        most = ", ".join(f"{name}: {count}" for name, count in each.items())
        # Each member has at least a thread, which no field changes; on several cores that is no loss.
        remedy = "leave `threads` of the members out, or have fewer replicas" if is_chosen else "give it more CPUs"
        return Finding("look", f"{what} ({most})", remedy)
    if (unused := here - total) * LEAST_UNUSED >= here:
        return Finding("look", f"{what}; {unused} cores are unused", f"have replicas and `threads` that make {here}")
    return Finding("ok", what)


def instructions(flags: set[str] | None = None) -> Finding:
    """Look for instructions that make int8 models fast."""
    found = flags if flags is not None else cpu_flags()
    int8 = [name for flag, name in INT8.items() if flag in found]
    bf16 = [name for flag, name in BF16.items() if flag in found]
    by = [" and ".join(names) or "none" for names in (int8, bf16)]
    what = f"instructions ({platform.machine()}): int8 by {by[0]}, bf16 by {by[1]}"
    if not int8:
        return Finding("look", what, "int8 gains little here: compare `version: 1` of the members (float) in the YAML")
    return Finding("ok", what)


def cpu_flags() -> set[str]:
    """Read the instruction sets that the kernel reports."""
    lines = CPU_INFO.read_text(encoding="utf-8").splitlines()
    return set(next((line.partition(":")[2].split() for line in lines if line.startswith(("flags", "Features"))), []))


def memory(replicas: float, free: float) -> Finding:
    """Compare the free memory, bytes, with the expected use of replicas."""
    what = f"memory: {free / GIB:.1f} GiB are free"
    if (expected := replicas * MEMORY_OF_A_REPLICA) > free:
        remedy = f"its {replicas:g} replicas take about {expected / GIB:.1f} GiB: configs/colocated.yaml has one"
        return Finding("look", what, remedy)
    return Finding("ok", what)


def folder() -> Finding:
    """Check that a server can have a folder that only this user can enter or replace."""

    def check() -> None:
        check_space(parent())
        with tempfile.TemporaryDirectory(dir=parent()) as made:
            check_place(Path(made), SETTING)

    if (found := failure(check, "files: ")) is not None:
        return found._replace(remedy=found.remedy or f"set {SETTING} to another folder")
    free = shutil.disk_usage(parent()).free
    what = (
        f"files: only this user can enter the folder that a server makes in {parent()}; {free / GIB:.1f} GiB are free"
    )
    return Finding("look", what, "remove files: logs need room") if free < GIB else Finding("ok", what)


def token() -> Finding:
    """Check that other users of this machine can't read Ray's token, with which they could use the cluster."""
    if TOKEN_PATH not in os.environ and not is_in_cluster():
        return Finding("ok", "token: the server makes one of its own")
    path = Path(os.environ.get(TOKEN_PATH, str(TOKEN_FILE)))
    if not path.exists():
        return Finding("ok", f"token: {path} will be made at the start")
    if path.stat().st_uid != os.getuid() or path.stat().st_mode & 0o077:
        return Finding("look", f"token: others can read {path}", f"chmod 600 {path}")
    return Finding("ok", f"token: {path} is there, and yours alone")
