"""Predicts a configuration's throughput, latency, CPU time and memory, from a minute of measured loads."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import click
import msgspec
from tqdm import tqdm

from deployments.contract.names import INGRESS
from deployments.cpus import available_cpus
from ensemble_capacity.load.__main__ import photographs
from ensemble_capacity.load.load import Closed
from ensemble_capacity.load.measure import Row
from ensemble_capacity.plan.model import FIGURES, STUDENT, Loop, Prediction, Profile, predict
from ensemble_capacity.serving import loaded, only_application, read, serving
from ensemble_models.options import FILE, POSITIVE, Command, Table, option
from scripts import configuration
from scripts.errors import ScriptError
from scripts.shipped import shipped

# Clients of the closed loops that predictions are made from, and of those that are predicted and measured.
CLIENTS, CHECKED = (1, 2, 4, 8, 16, 32, 64), (3, 6, 12, 24, 48)
# How long each load lasts. Loads of up to 30 s made predictions no better.
SECONDS = 4.0
# Clients of closed loops that are predicted unless other ones are asked for.
USUAL = (1, 8, 32)
HEADINGS = ("load", "cores", "requests/s", "p50, ms", "p99, ms", "cores used", "memory, MB")
# The p99 of fewer requests is the slowest one of them.
ENOUGH = 100


def measure(config: Mapping[str, Any], images: Sequence[bytes]) -> Profile:
    """Serve a configuration, and measure its profile.

    Args:
        config: a Serve config of one application, with fixed numbers of replicas.
        images: encoded, which are sent in turn.

    Raises:
        ScriptError: the server did not start, or requests failed.
    """
    most = in_flight(config)
    clients = [each for each in sorted((*CLIENTS, *CHECKED)) if each <= most]
    with serving(config) as url:
        bar = tqdm(clients, unit="load", leave=False, disable=None)
        rows = {count: loaded(url, images, Closed(count), SECONDS) for count in bar}
    if bad := next((each for each in rows.values() if each.failed or not each.requests), None):
        raise ScriptError(f"{bad.failed} requests failed while it was profiled: {bad.first_error}")
    memory = rows[clients[-1]].server.memory_mb
    replicas = sum(megabytes for name, megabytes in memory.items() if name.startswith("ray::"))
    loops, checks = (tuple(loop(row) for count, row in rows.items() if count in some) for some in (CLIENTS, CHECKED))
    return Profile(available_cpus(), loops, checks, replicas, sum(memory.values()) - replicas)


def fixed(config: Mapping[str, Any]) -> dict[str, Any]:
    """Replace autoscaling by the number of replicas at the start, at least one."""
    made = copy.deepcopy(dict(config))
    for entry in only_application(made).get("deployments") or []:
        if entry.get("autoscaling_config") is not None or entry.get("num_replicas") == "auto":
            entry["num_replicas"] = max(1, configuration.replicas_at_start(entry))
            entry.pop("autoscaling_config", None)
    return made


def in_flight(config: Mapping[str, Any]) -> int:
    """Count the requests that all replicas of the ingress admit at a time."""
    application = only_application(config)
    made = configuration.check_arguments(application)
    return made.ingress.max_in_flight * configuration.replicas_of(application, made).get(INGRESS, 1)


def loop(row: Row) -> Loop:
    """Take the figures of a closed loop from its row."""
    used = 1000 * row.per_request(sum(row.server.cpu_s.values()))
    figures = row.requests_per_s, row.percentiles_ms["p50"], row.percentiles_ms["p99"], used
    return Loop(int(row.value), row.requests, *map(float, figures))


def cells(found: Prediction) -> list[str]:
    """Make a prediction's line of the table."""
    bounds = [str(found.intervals[name]) for name in FIGURES]
    load = [f"{found.clients} at a time", str(found.cores)]
    return [*load, *bounds, f"{found.cpu:.2f}", f"{found.memory_mb:,.0f}"]


def notes(found: Sequence[Prediction], profile: Profile) -> Iterator[str]:
    """Say what the predictions depend on, and why an interval is wide or unknown."""
    yield "Predicted from loads of this machine, not measured."
    if any(each.cores != profile.cores for each in found):
        yield f"Only {profile.cores} cores were measured: others have so many more or fewer replicas, as fast as here."
    for name in FIGURES:
        if any(each.intervals[name].is_wide for each in found):
            ratios = profile.ratios(name)
            yield (
                f"{name} is too uncertain to plan with: {len(ratios)} loads were predicted and measured, and had "
                f"{min(ratios):.2f} to {max(ratios):.2f} times the predicted value. {remedy(name, profile)}"
            )
    if any(interval.is_unknown for each in found for interval in each.intervals.values()):
        yield (
            f"Unknown above {profile.reach} clients on {profile.cores} cores, the most that were checked, or where "
            f"fewer than {min(STUDENT)} loads were: measure it by `ensemble load`."
        )


def remedy(name: str, profile: Profile) -> str:
    """Say why an interval is wide, and what makes it narrower."""
    fewest = min(each.requests for each in profile.checks)
    if name == "p99_ms" and fewest < ENOUGH:
        return f"A load had {fewest} requests, too few for a p99: `ensemble load --seconds` measures more of them."
    return "The machine's speed changed meanwhile: repeat the command on an idle machine."


@click.command("plan", cls=Command)
@click.argument("config", type=FILE, default=shipped("configs/colocated.yaml"))
@option("--images", type=FILE, multiple=True, metavar="PATH...", help="Images to send; default: tests/cat.jpg.")
@option("--cores", type=POSITIVE, multiple=True, metavar="N...", help="Cores to predict for; default: this machine's.")
@option(
    "--concurrency", type=POSITIVE, multiple=True, metavar="N...", help="Clients of a closed loop; default: 1 8 32."
)
@option("--json", "as_json", is_flag=True, help="Print JSON.")
def main(**given: Any) -> None:
    """Predict a configuration's throughput, latency, CPU time and memory.

    ensemble plan configs/colocated.yaml                       # 1, 8 and 32 clients at a time
    ensemble plan configs/colocated.yaml --concurrency 4 64
    ensemble plan configs/colocated.yaml --cores 4 16          # other machines

    The command serves the configuration here, and measures it for a minute. A prediction is an interval; the errors of
    predictions that were measured, too, decide its width. See docs/capacity.md.
    """
    options = SimpleNamespace(**given)
    config = fixed(read(options.config))
    images, cores = photographs(options.images), options.cores or [available_cpus()]
    most = max(1, in_flight(config) * min(cores) // available_cpus())
    if max(options.concurrency, default=0) > most:
        raise click.UsageError(
            f"--concurrency: of more than {most} requests at a time the server refuses some; name at most {most}, or "
            "raise ingress.max_in_flight"
        )
    print("Measuring this configuration, about a minute.", file=sys.stderr)
    profile = measure(config, images)
    usual = [each for each in USUAL if each <= most]
    found = [predict(profile, clients, count) for count in cores for clients in options.concurrency or usual]
    if options.as_json:
        print(msgspec.json.encode({"measured_cores": profile.cores, "predicted": found}).decode())
        return
    Table(HEADINGS, [cells(each) for each in found], words=range(5), notes=[*notes(found, profile)]).show()


if __name__ == "__main__":
    main()
