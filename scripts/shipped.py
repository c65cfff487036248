"""This project as it is installed: the files that ship beside its packages, and other code that hides these."""

import sys
from collections.abc import Sequence
from importlib.machinery import PathFinder
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
# Where the wheel's data files go: `tool.setuptools.data-files`.
INSTALLED = Path(sys.prefix) / "share" / "ensemble-serving"
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
