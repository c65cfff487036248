"""This project as it is installed: the files that ship beside its packages, and other code that hides these."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import metadata
from importlib.machinery import PathFinder
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
# Where the wheel's data files go: `tool.setuptools.data-files`.
INSTALLED = Path(sys.prefix) / "share" / "ensemble-serving"
DISTRIBUTION = "ensemble-serving"
PACKAGES = ("graph", "deployments", "scripts")


def shipped(name: str) -> Path:
    """Return the path of a shipped file, such as `serve_config.yaml` or `configs/colocated.yaml`; it may be missing."""
    path = CHECKOUT / name
    return path if path.exists() else INSTALLED / name


def hidden(first: Sequence[str] = ()) -> dict[str, str]:
    """Find other code that Python would import by the names of this project's packages: its place, by name.

    The search begins with the folders `first`.
    """
    found = {}
    for name in PACKAGES:
        # None where an editable install finds the package by a finder of its own.
        spec = PathFinder.find_spec(name, [*first, *sys.path])
        places = [] if spec is None else [spec.origin, *(spec.submodule_search_locations or ())]
        if places and str(CHECKOUT / name) not in places:
            found[name] = next(place for place in places if place)
    return found


def stale() -> list[str]:
    """List distributions in folders of PYTHONPATH, which come first, in versions that this project can't use."""
    folders = [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]
    if not folders:
        return []
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    there = {canonicalize_name(each.name): each for each in metadata.distributions(path=folders)}
    required = map(Requirement, metadata.requires(DISTRIBUTION) or ())
    always = [each for each in required if each.marker is None or each.marker.evaluate({"extra": ""})]
    needed = {canonicalize_name(each.name): each.specifier for each in always}
    return [
        f"{name} {each.version} in {each.locate_file('')}, and not {needed[name]}"
        for name, each in there.items()
        if name in needed and not needed[name].contains(each.version, prereleases=True)
    ]
