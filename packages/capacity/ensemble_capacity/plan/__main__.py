"""Predicts a configuration's throughput, latency, CPU time and memory, before it serves."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import click
import msgspec

from ensemble_capacity.load.__main__ import image_files
from ensemble_capacity.load.load import Arrivals, Closed
from ensemble_capacity.plan import profile as profiles
from ensemble_capacity.plan.model import HEADINGS, Prediction, predict
from ensemble_capacity.plan.profile import FIGURES, Profile
from ensemble_capacity.plan.scenario import every_member, scenario
from ensemble_models.dataset import check_image
from ensemble_models.options import FILE, POSITIVE, SHARE, Command, Number, option
from ensemble_models.results import Table
from scripts import configuration
from scripts.errors import ScriptError
from scripts.shipped import shipped

# Images that are decoded and sent; of more, so many in equal distances.
MOST_IMAGES = 32
F = TypeVar("F", bound=Callable[..., Any])


def profile_options(command: F) -> F:
    """Add the options of a profile to a command."""
    config = click.argument("config", type=FILE, default=shipped("configs/colocated.yaml"))
    options = (
        option("--profile", type=FILE, help="File of the profile; default: in the user's cache folder."),
        option("--measure", is_flag=True, help="Measure the profile again."),
        option("--images", type=FILE, multiple=True, metavar="PATH...", help="Images to send; default: tests/cat.jpg."),
        option("--cores", type=POSITIVE, help="Cores of the machine to predict for; default: this one's."),
        option(
            "--exits",
            type=SHARE,
            multiple=True,
            metavar="SHARE...",
            help="Share of a cascade's images that exit at each member but the last.",
        ),
    )
    for each in reversed((config, *options)):
        command = each(command)
    return command


def photographs(paths: Sequence[Path]) -> list[bytes]:
    """Read the images to measure with; of a large folder, some in equal distances.

    Raises:
        ScriptError: a file is no image.
    """
    files = image_files(paths)
    files = files[:: -(-len(files) // MOST_IMAGES)]
    images = [file.read_bytes() for file in files]
    for file, encoded in zip(files, images, strict=True):
        check_image(str(file), encoded)
    return images


def only_application(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the application of a Serve config.

    Raises:
        ScriptError: there is not exactly one of this project.
    """
    found = list(configuration.ours(config))
    if len(found) != 1:
        raise ScriptError(f"a configuration of one application can be planned; this one has {len(found)}")
    return found[0]


def profile_of(options: SimpleNamespace, config: Mapping[str, Any], images: Sequence[bytes]) -> Profile:
    """Read the kept profile, and measure its missing parts.

    Args:
        options: of `profile_options`.
        config: the configuration to profile.
        images: that are decoded and sent.

    Raises:
        ScriptError: it can't be measured or read.
    """
    # Refuses what can't be planned, before minutes of measurement.
    every_member(config)
    file = options.profile or profiles.kept_file(only_application(config), images)
    begun = profiles.read(file) if file.exists() and not options.measure else None
    if begun is not None and begun.is_complete:
        return begun
    # Imported where a profile is measured: OpenVINO's members take seconds to import.
    from ensemble_capacity.plan.measuring import measure

    def log(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    log(f"Measuring a profile of this machine, about four minutes; it is kept in {file} after each step.")
    return measure(config, images, begun, lambda profile: profiles.write(profile, file), lambda text: log(f"  {text}"))


def predictions(options: SimpleNamespace, config: Mapping[str, Any], profile: Profile, cores: int) -> list[Prediction]:
    """Predict each load."""
    given = scenario(only_application(config), options.exits or None, cores)
    loads = [Arrivals(rate) for rate in options.rate] + [Closed(clients) for clients in options.concurrency]
    loads = loads or [Closed(clients) for clients in (1, 8, 32)]
    return [predict(given, profile, load, cores) for load in loads]


def table(found: Sequence[Prediction], profile: Profile, cores: int) -> Table:
    """Make a table of the predictions, with notes on the profile."""
    facts = profile.machine
    notes = [f"Predicted, not measured, by a profile of {facts['cpu']}, {facts['cores']} cores, {facts['date']}."]
    if cores != profile.cores:
        notes.append(f"{cores} cores were not measured: each is taken to be as fast as one of the {profile.cores}.")
    if noise := profile.noise():
        notes.append(noise)
    wide = sorted({name for each in found for name in FIGURES if each.intervals[name].is_wide})
    if wide:
        notes.append(
            f"Too uncertain to plan with, more than twice the lower end: {', '.join(wide)}. Measure it by `ensemble "
            "load`, or the profile again on an idle machine: --measure"
        )
    return Table(HEADINGS, [each.cells for each in found], words=(0, 1, 2, 3, len(HEADINGS) - 1), notes=notes)


@click.command("plan", cls=Command)
@profile_options
@option(
    "--concurrency", type=POSITIVE, multiple=True, metavar="N...", help="Clients of a closed loop; default: 1 8 32."
)
@option("--rate", type=Number(), multiple=True, metavar="R...", help="Requests per second of an open loop.")
@option("--json", "as_json", is_flag=True, help="Print JSON.")
def main(**given: Any) -> None:
    """Predict a configuration's throughput, latency, CPU time and memory, before it serves.

    ensemble plan configs/colocated.yaml                       # 1, 8 and 32 clients at a time
    ensemble plan configs/colocated.yaml --rate 100 200 400    # an open loop
    ensemble plan configs/colocated.yaml --cores 16            # another machine

    The first time it measures this machine for about four minutes: each node by batch size and threads, and servers
    under loads that it also predicts. The profile is kept, for all configurations of the same models. A
    prediction is an interval; the errors under these loads decide its width. See docs/capacity.md.
    """
    options = SimpleNamespace(**given)
    if options.images and options.profile is not None and options.profile.exists() and not options.measure:
        raise click.UsageError(f"--images: {options.profile} is measured already; add --measure, or name another file")
    config = configuration.read(options.config)
    images = photographs(options.images)
    scenario(only_application(config), options.exits or None)
    profile = profile_of(options, config, images)
    cores = options.cores or profile.cores
    found = predictions(options, config, profile, cores)
    if options.as_json:
        print(msgspec.json.encode({"machine": profile.machine, "cores": cores, "predicted": found}).decode())
    else:
        table(found, profile, cores).show()


if __name__ == "__main__":
    main()
