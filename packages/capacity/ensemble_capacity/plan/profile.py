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
from ensemble_capacity.load.load import Arrivals, Closed, Mode
from ensemble_capacity.load.measure import Row
from ensemble_capacity.plan.model import FIGURES, Check, Loop, Profile, predict
from ensemble_capacity.serving import loaded, only_application, serving
from scripts import configuration
from scripts.errors import ScriptError

# Clients of the closed loops that predictions are made from.
CLIENTS = (1, 2, 4, 8, 16, 32, 64)
# Loads that are predicted and measured: clients of closed loops, and Poisson arrivals at shares of the highest rate.
CHECKED, SHARES_OF_MOST = (3, 6, 12, 24, 48), (0.3, 0.5, 0.65, 0.8)
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
    most_in_flight = in_flight(only_application(served))
    clients, checked = ([each for each in some if each <= most_in_flight] for some in (CLIENTS, CHECKED))
    with tqdm(total=len(clients) + len(checked) + len(SHARES_OF_MOST), unit="load", leave=False, disable=None) as bar:

        def row(url: str, mode: Mode) -> Row:
            bar.update()
            return loaded(url, photographs, mode, SECONDS)

        with serving(served) as url:
            rows = [row(url, Closed(count)) for count in clients]
            if bad := next((each for each in rows if each.failed or not each.requests), None):
                raise ScriptError(f"{bad.failed} requests failed while it was profiled: {bad.first_error}")
            memory = rows[-1].server.memory_mb
            replicas = sum(megabytes for name, megabytes in memory.items() if name.startswith("ray::"))
            profile = Profile(
                digest(config, photographs),
                facts(photographs),
                available_cpus(),
                most_in_flight,
                tuple(map(loop, rows)),
                replicas,
                sum(memory.values()) - replicas,
            )
            most = max(each.requests_per_s for each in profile.loops)
            # Arrivals of their own for each, so that the luck of one sequence is not in all.
            open_loops = (Arrivals(share * most, seed=seed) for seed, share in enumerate(SHARES_OF_MOST))
            modes: list[Mode] = [*map(Closed, checked), *open_loops]
            checks = [check(profile, mode, row(url, mode)) for mode in modes]
    return msgspec.structs.replace(profile, checks=tuple(each for each in checks if each is not None))


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
    used = sum(row.server.cpu_s.values())
    latency = (row.min_ms, *row.percentiles_ms.values(), row.max_ms)
    return Loop(int(row.value), float(row.requests_per_s), latency, 1000 * float(row.per_request(used)))


def check(profile: Profile, mode: Mode, row: Row) -> Check | None:
    """Compare a measured load with its prediction; None if requests failed, as on a machine that became busy."""
    if row.failed or not row.requests:
        return None
    found = predict(profile, mode)
    seen = (row.requests_per_s, row.percentiles_ms["p50"], row.percentiles_ms["p99"])
    ratios = {name: float(value / getattr(found, name)) for name, value in zip(FIGURES, seen, strict=True)}
    return Check(isinstance(mode, Closed), row.value, ratios)


def facts(photographs: Sequence[bytes]) -> dict[str, str]:
    """Describe in words what the profile depends on."""
    sizes = sorted(len(each) for each in photographs)
    return {
        "cpu": cpu(),
        "cores": str(available_cpus()),
        "images": f"{len(photographs)}, of {sizes[len(sizes) // 2]:,} bytes (median)",
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    }


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
