"""Predicts a configuration's throughput, latency, CPU time and memory, from two minutes of measured loads."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import msgspec

from deployments.members.openvino_autotune import FOLDER
from deployments.repository.repository import user_cache
from ensemble_capacity.load.__main__ import photographs
from ensemble_capacity.plan import profile as profiles
from ensemble_capacity.plan.model import FIGURES, STUDENT, Prediction, Profile, predict
from ensemble_capacity.serving import read
from ensemble_models.options import FILE, POSITIVE, Command, Table, option
from scripts.errors import ScriptError
from scripts.shipped import shipped

# Clients of closed loops that are predicted unless other ones are asked for.
USUAL = (1, 8, 32)
HEADINGS = ("load", "requests/s", "p50, ms", "p99, ms", "cores used", "memory, MB")
# The p99 of fewer requests is the slowest one of them.
ENOUGH = 100


def cells(found: Prediction) -> list[str]:
    """Make a prediction's line of the table."""
    bounds = [str(found.intervals[name]) for name in FIGURES]
    return [f"{found.clients} at a time", *bounds, f"{found.cpu:.2f}", f"{found.memory_mb:,.0f}"]


def notes(found: Sequence[Prediction], profile: Profile, cores: int) -> Iterator[str]:
    """Say what the predictions depend on, and why an interval is wide or unknown."""
    facts = profile.machine
    yield f"Predicted, not measured, by a profile of {facts['cpu']}, {facts['cores']} cores, {facts['date']}."
    if cores != profile.cores:
        times = f"{cores / profile.cores:g} times the replicas"
        yield f"{cores} cores were not measured: predicted for {times}, each as fast as here."
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
    return "The machine's speed changed meanwhile: measure on an idle machine, --measure."


@click.command("plan", cls=Command)
@click.argument("config", type=FILE, default=shipped("configs/colocated.yaml"))
@option("--profile", type=FILE, help="File of the profile; default: in the user's cache folder.")
@option("--measure", is_flag=True, help="Measure the profile again.")
@option("--images", type=FILE, multiple=True, metavar="PATH...", help="Images to send; default: tests/cat.jpg.")
@option("--cores", type=POSITIVE, help="Cores of the machine to predict for; default: this one's.")
@option(
    "--concurrency", type=POSITIVE, multiple=True, metavar="N...", help="Clients of a closed loop; default: 1 8 32."
)
@option("--json", "as_json", is_flag=True, help="Print JSON.")
def main(**given: Any) -> None:
    """Predict a configuration's throughput, latency, CPU time and memory.

    ensemble plan configs/colocated.yaml                       # 1, 8 and 32 clients at a time
    ensemble plan configs/colocated.yaml --concurrency 4 64
    ensemble plan configs/colocated.yaml --cores 16            # another machine

    The first time it serves the configuration here, and measures it for about two minutes. The profile is kept. A
    prediction is an interval; the errors of predictions that were measured, too, decide its width. See
    docs/capacity.md.
    """
    options = SimpleNamespace(**given)
    config = read(options.config)
    profile = kept(config, photographs(options.images), options.profile, options.measure)
    cores = options.cores or profile.cores
    most = max(1, math.floor(profile.most_in_flight * cores / profile.cores))
    if max(options.concurrency, default=0) > most:
        raise click.UsageError(
            f"--concurrency: of more than {most} requests at a time the server refuses some; name at most {most}, or "
            "raise ingress.max_in_flight"
        )
    usual = [clients for clients in USUAL if clients <= most]
    found = [predict(profile, clients, cores) for clients in options.concurrency or usual]
    if options.as_json:
        print(msgspec.json.encode({"machine": profile.machine, "cores": cores, "predicted": found}).decode())
    else:
        Table(HEADINGS, [cells(each) for each in found], words=range(4), notes=[*notes(found, profile, cores)]).show()


def kept(config: dict[str, Any], images: Sequence[bytes], file: Path | None, again: bool) -> Profile:
    """Read the profile of a configuration, or measure and keep it.

    Raises:
        ScriptError: it can't be measured or read, or depends on something else.
    """
    digest = profiles.digest(config, images)
    file = file or user_cache(FOLDER) / f"plan-{digest}.json"
    if file.exists() and not again:
        if (known := profiles.read(file)).digest != digest:
            raise ScriptError(
                f"{file} is of another configuration, other images, another machine or another OpenVINO; name the same "
                "configuration and --images, or measure again: --measure"
            )
        return known
    print(f"Measuring this configuration, about two minutes; the profile is kept in {file}.", file=sys.stderr)
    found = profiles.measure(config, images)
    profiles.write(found, file)
    return found


if __name__ == "__main__":
    main()
