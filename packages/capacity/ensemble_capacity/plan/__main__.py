"""Predicts a configuration's throughput, latency, CPU time and memory, from two minutes of measured loads."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import msgspec

from deployments.members.openvino_autotune import FOLDER
from deployments.repository.repository import user_cache
from ensemble_capacity.load.__main__ import photographs
from ensemble_capacity.load.load import Arrivals, Closed, Mode
from ensemble_capacity.plan import profile as profiles
from ensemble_capacity.plan.model import FIGURES, HEADINGS, LEAST_CHECKS, Prediction, Profile, predict
from ensemble_capacity.serving import read
from ensemble_models.options import FILE, POSITIVE, Command, Number, Table, option
from scripts.errors import ScriptError
from scripts.shipped import shipped

# Clients of closed loops that are predicted unless other loads are asked for.
USUAL = (1, 8, 32)


def table(found: Sequence[Prediction], profile: Profile, cores: int) -> Table:
    """Make a table of the predictions, with notes on the profile."""
    facts = profile.machine
    notes = [f"Predicted, not measured, by a profile of {facts['cpu']}, {facts['cores']} cores, {facts['date']}."]
    if cores != profile.cores:
        times = f"{cores / profile.cores:g} times the replicas"
        notes.append(f"{cores} cores were not measured: predicted for {times}, each as fast as here.")
    wide = sorted({name for each in found for name in FIGURES if each.intervals[name].is_wide})
    if wide:
        notes.append(
            f"Too uncertain to plan with, more than twice the lower end: {', '.join(wide)}. Measure it by `ensemble "
            "load`, or the profile again on an idle machine: --measure"
        )
    if any(interval.is_unknown for each in found for interval in each.intervals.values()):
        checked = f"{profile.reach(closed=True):g} clients and {profile.reach(closed=False):.4g} requests/s"
        notes.append(
            f"Unknown above the loads that were checked, up to {checked} on {profile.cores} cores, or where fewer than "
            f"{LEAST_CHECKS} were: measure it by `ensemble load`."
        )
    return Table(HEADINGS, [each.cells for each in found], words=(0, 1, 2, 3), notes=notes)


@click.command("plan", cls=Command)
@click.argument("config", type=FILE, default=shipped("configs/colocated.yaml"))
@option("--profile", type=FILE, help="File of the profile; default: in the user's cache folder.")
@option("--measure", is_flag=True, help="Measure the profile again.")
@option("--images", type=FILE, multiple=True, metavar="PATH...", help="Images to send; default: tests/cat.jpg.")
@option("--cores", type=POSITIVE, help="Cores of the machine to predict for; default: this one's.")
@option(
    "--concurrency", type=POSITIVE, multiple=True, metavar="N...", help="Clients of a closed loop; default: 1 8 32."
)
@option("--rate", type=Number(), multiple=True, metavar="R...", help="Requests per second of an open loop.")
@option("--json", "as_json", is_flag=True, help="Print JSON.")
def main(**given: Any) -> None:
    """Predict a configuration's throughput, latency, CPU time and memory.

    ensemble plan configs/colocated.yaml                       # 1, 8 and 32 clients at a time
    ensemble plan configs/colocated.yaml --rate 100 200 400    # an open loop
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
    loads: list[Mode] = [*map(Arrivals, options.rate), *map(Closed, options.concurrency)]
    usual = [Closed(clients) for clients in USUAL if clients <= most]
    found = [predict(profile, load, cores) for load in loads or usual]
    if options.as_json:
        print(msgspec.json.encode({"machine": profile.machine, "cores": cores, "predicted": found}).decode())
    else:
        table(found, profile, cores).show()


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
