"""Predicts a configuration's throughput, latency, CPU time and memory, before it serves.

    ensemble plan configs/colocated.yaml                       # 1, 8 and 32 clients at a time
    ensemble plan configs/colocated.yaml --rate 100 200 400    # an open loop
    ensemble plan configs/colocated.yaml --cores 16            # another machine

The first time it measures this machine for about two minutes: each node by batch size and threads, and the server twice
under two loads. The profile is kept; a prediction takes less than a second. See docs/planning.md.
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from deployments.members.local import LocalMember
from deployments.members.openvino_autotune import folder
from ensemble_capacity.load.arrivals import Arrivals
from ensemble_capacity.load.load import Closed
from ensemble_capacity.load.plan import image_files
from ensemble_capacity.plan import profile as profiles
from ensemble_capacity.plan.prediction import HEADINGS, Prediction, predict
from ensemble_capacity.plan.profile import Profile
from ensemble_capacity.plan.setting import setting
from scripts import configuration
from scripts.dataset import check_image
from scripts.errors import ScriptError, errors_in_one_line, fraction, number, positive
from scripts.flags import described
from scripts.results import Table
from scripts.shipped import shipped


def add_profile(parser: argparse.ArgumentParser) -> None:
    """Add the flags of a profile."""
    parser.add_argument(
        "config", type=Path, nargs="?", default=shipped("configs/colocated.yaml"), help="a Serve config"
    )
    parser.add_argument(
        "--profile", type=Path, metavar="FILE", help="file of the profile; default: in the user's cache folder"
    )
    parser.add_argument("--measure", action="store_true", help="measure the profile again")
    parser.add_argument(
        "--images",
        type=Path,
        nargs="+",
        metavar="PATH",
        help="images to measure with; default: a cat",
    )
    parser.add_argument("--cores", type=positive, help="cores of the machine to predict for; default: this one's")
    parser.add_argument("--clients-here", action="store_true", help="the clients compute on the server's cores, too")
    parser.add_argument(
        "--exits",
        type=fraction,
        nargs="+",
        metavar="SHARE",
        help="of a cascade: the share of its images that exit at each member but the last",
    )


def photographs(args: argparse.Namespace) -> list[bytes]:
    """The images to measure with.

    Raises:
        ScriptError: a file is no image.
    """
    files = image_files(args.images)
    images = [file.read_bytes() for file in files]
    for file, encoded in zip(files, images, strict=True):
        check_image(str(file), encoded)
    return images


def only_application(config: Mapping[str, Any]) -> dict[str, Any]:
    """The application of a Serve config.

    Raises:
        ScriptError: there is not exactly one of this project.
    """
    found = list(configuration.ours(config))
    if len(found) != 1:
        raise ScriptError(f"a configuration of one application can be planned; this one has {len(found)}")
    return found[0]


def profile_of(
    args: argparse.Namespace,
    config: Mapping[str, Any],
    images: Sequence[bytes],
    exits: Sequence[float] | None = None,
    like: Profile | None = None,
) -> Profile:
    """The profile that is kept, or else a new one.

    Args:
        args: the flags of `add_profile`.
        config: what is profiled.
        images: that are decoded and sent.
        exits: of its cascade.
        like: the profile of the configuration itself, where this is one of other versions of its models.

    Raises:
        ScriptError: it can't be measured or read.
    """
    application = only_application(config)
    key = _key(application, images)
    file = args.profile or folder() / f"plan-{key}.json"
    if args.profile is not None and like is not None:
        file = file.with_stem(f"{file.stem}-{key}")
    begun = profiles.read(file) if file.exists() and not args.measure else None
    if begun is not None and begun.served:
        return begun
    from ensemble_capacity.plan.measuring import measure_nodes, measure_server

    # Refuses what can't be planned, before minutes of measurement.
    setting(application, exits)
    time = "about two minutes" if like is None else "about half a minute"
    print(f"Measuring a profile of this machine, {time}; it is kept in {file}.", flush=True)

    def log(text: str) -> None:
        print(f"  {text}", flush=True)

    if begun is None:
        begun = measure_nodes(config, images, log, like)
        # At once, so that a server that does not start costs its own measurement alone.
        profiles.write(begun, file)
    if not begun.served:
        begun = measure_server(begun, config, images, log)
        profiles.write(begun, file)
    return begun


def _key(application: Mapping[str, Any], images: Sequence[bytes]) -> str:
    """What a profile depends on besides the machine: the models' files, what runs them, and the images."""
    config = configuration.check_arguments(application)
    members = [member.model_dump(exclude={"placement", "threads", "weight", "deployment"}) for member in config.members]
    local = [member for member in config.members if isinstance(member, LocalMember)]
    files = [member.file_digests(config.model_repository) for member in local]
    sent = [hashlib.sha256(each).hexdigest() for each in images]
    return hashlib.sha256(repr((files, members, sent)).encode()).hexdigest()[:16]


def predictions(args: argparse.Namespace, config: Mapping[str, Any], profile: Profile, cores: int) -> list[Prediction]:
    """A prediction of each load."""
    given = setting(only_application(config), args.exits, cores)
    loads = [Arrivals(rate) for rate in args.rate or ()] + [Closed(clients) for clients in args.concurrency or ()]
    loads = loads or [Closed(clients) for clients in (1, 8, 32)]
    return [predict(given, profile, load, cores, clients_here=args.clients_here) for load in loads]


def table(found: Sequence[Prediction], profile: Profile, cores: int) -> Table:
    """The predictions, and what they are by."""
    facts = profile.machine
    notes = [f"Predicted, not measured, by a profile of {facts['cpu']}, {facts['cores']} cores, {facts['date']}."]
    if cores != profile.cores:
        notes.append(f"{cores} cores were not measured: each is taken to be as fast as one of the {profile.cores}.")
    return Table(HEADINGS, [each.cells for each in found], words=(0, len(HEADINGS) - 1), notes=notes)


def main() -> None:
    """Parse the command line, predict and print."""
    parser = described(__doc__)
    add_profile(parser)
    parser.add_argument("--concurrency", type=positive, nargs="+", metavar="N", help="clients of a closed loop")
    parser.add_argument("--rate", type=number(0), nargs="+", metavar="R", help="requests per second of an open loop")
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args()
    if args.images and args.profile is not None and args.profile.exists() and not args.measure:
        parser.error(f"--images: {args.profile} is measured already; add --measure, or name another --profile")
    with errors_in_one_line():
        config = configuration.read(args.config)
        profile = profile_of(args, config, photographs(args), args.exits)
        cores = args.cores or profile.cores
        found = predictions(args, config, profile, cores)
    if args.json:
        print(msgspec.json.encode({"machine": profile.machine, "cores": cores, "predicted": found}).decode())
    else:
        table(found, profile, cores).show()


if __name__ == "__main__":
    main()
