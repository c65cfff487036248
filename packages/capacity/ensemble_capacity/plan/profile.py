"""The profile of a configuration on this machine, from which `plan` predicts: short loads of a server, in a file."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from tqdm import tqdm

from deployments.contract.names import INGRESS
from deployments.cpus import available_cpus
from ensemble_capacity.load.load import Closed
from ensemble_capacity.load.measure import Row
from ensemble_capacity.plan.model import Loop, Profile
from ensemble_capacity.serving import loaded, only_application, serving
from scripts import configuration
from scripts.errors import ScriptError

# Clients of the closed loops that predictions are made from, and of those that are predicted and measured.
CLIENTS, CHECKED = (1, 2, 4, 8, 16, 32, 64), (3, 6, 12, 24, 48)
# How long each load lasts. Loads of up to 30 s made predictions no better.
SECONDS = 4.0


def measure(config: Mapping[str, Any], photographs: Sequence[bytes]) -> Profile:
    """Serve a configuration, with the replicas that it starts with, and measure its profile.

    Args:
        config: a Serve config of one application.
        photographs: encoded images, which are sent in turn.

    Raises:
        ScriptError: the server did not start, or requests failed.
    """
    served = fixed(config)
    most = in_flight(only_application(served))
    clients = [each for each in sorted((*CLIENTS, *CHECKED)) if each <= most]
    with serving(served) as url:
        bar = tqdm(clients, unit="load", leave=False, disable=None)
        rows = {count: loaded(url, photographs, Closed(count), SECONDS) for count in bar}
    if bad := next((each for each in rows.values() if each.failed or not each.requests), None):
        raise ScriptError(f"{bad.failed} requests failed while it was profiled: {bad.first_error}")
    memory = rows[clients[-1]].server.memory_mb
    replicas = sum(megabytes for name, megabytes in memory.items() if name.startswith("ray::"))
    loops, checks = (tuple(loop(row) for count, row in rows.items() if count in some) for some in (CLIENTS, CHECKED))
    return Profile(
        digest(config, photographs),
        facts(),
        available_cpus(),
        most,
        loops,
        checks,
        replicas_mb=replicas,
        rest_mb=sum(memory.values()) - replicas,
    )


def fixed(config: Mapping[str, Any]) -> dict[str, Any]:
    """Replace autoscaling by the number of replicas at the start, at least one."""
    made = copy.deepcopy(dict(config))
    for entry in only_application(made).get("deployments") or []:
        if entry.get("autoscaling_config") is not None or entry.get("num_replicas") == "auto":
            entry["num_replicas"] = max(1, configuration.replicas_at_start(entry))
            entry.pop("autoscaling_config", None)
    return made


def in_flight(application: Mapping[str, Any]) -> int:
    """Count the requests that all replicas of the ingress admit at a time."""
    made = configuration.check_arguments(application)
    return made.ingress.max_in_flight * configuration.replicas_of(application, made).get(INGRESS, 1)


def loop(row: Row) -> Loop:
    """Take the figures of a closed loop from its row."""
    used = 1000 * row.per_request(sum(row.server.cpu_s.values()))
    figures = row.requests_per_s, row.percentiles_ms["p50"], row.percentiles_ms["p99"], used
    return Loop(int(row.value), row.requests, *map(float, figures))


def facts() -> dict[str, str]:
    """Describe in words where and when the profile was measured."""
    date = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return {"cpu": cpu(), "cores": str(available_cpus()), "date": date}


def cpu() -> str:
    """Name the processor."""
    import openvino as ov

    return str(ov.Core().get_property("CPU", "FULL_DEVICE_NAME"))


def read(file: Path) -> Profile:
    """Read a profile.

    Raises:
        ScriptError: the file has none.
    """
    try:
        return msgspec.json.decode(file.read_bytes(), type=Profile)
    except msgspec.MsgspecError as err:
        raise ScriptError(f"{file} is no profile of this version: {err}; measure again: --measure") from err


def write(profile: Profile, file: Path) -> None:
    """Keep a profile in a file, in one step."""
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_suffix(".part")
    part.write_bytes(msgspec.json.format(msgspec.json.encode(profile)) + b"\n")
    part.replace(file)


def digest(config: Mapping[str, Any], images: Sequence[bytes]) -> str:
    """Name what measurements depend on: the configuration, the models' files, images, machine and OpenVINO."""
    import openvino as ov

    made = configuration.check_arguments(only_application(config))
    models = sorted(member.identity(made.model_repository) for member in made.nodes)
    sent = [hashlib.sha256(each).hexdigest() for each in images]
    machine = cpu(), available_cpus(), ov.get_version()
    parts = json.dumps(config, sort_keys=True, default=str), models, sent, *machine
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
