"""Finds what plugins bring: by the name of an entry point, or by an import string `module:name`.

A *plugin* is a distribution, a *feature* is what it adds, and an *entry point* is how it is found. The server lists no
plugin: its own kinds of members, combinations and protocols are entry points, too. A process reads the names once.
"""

import re
from collections.abc import Iterable
from difflib import get_close_matches
from functools import cache
from importlib import import_module, metadata
from importlib.metadata import EntryPoints, entry_points
from pathlib import Path
from typing import Any

# The groups of entry points.
MEMBERS = "ensemble_serving.members"
COMBINERS = "ensemble_serving.combiners"
FEATURES = "ensemble_serving.features"
PROTOCOLS = "ensemble_serving.protocols"
REPOSITORIES = "ensemble_serving.repositories"
CONFIGURATIONS = "ensemble_serving.configurations"
SERVER = "ensemble-serving"
PACKAGES = Path(__file__).parent.parent / "packages"
# A requirement of the server's metadata: an extra that is named as the distribution of this project that it installs.
PLUGIN = re.compile(r"ensemble-([\w-]+)\b.*extra == ['\"]\1['\"]")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of the message that a name is unknown: the known name that is most like it, if any."""
    by_lower = {each.lower(): each for each in known}
    return "".join(f"; did you mean {by_lower[close]!r}?" for close in get_close_matches(name.lower(), by_lower, 1))


@cache
def _installed(group: str) -> EntryPoints:
    """Read the entry points of a group from the metadata of every distribution, which takes milliseconds."""
    return entry_points(group=group)


def names(group: str) -> list[str]:
    """List the names of a group's entry points, sorted."""
    return sorted(set(_installed(group).names))


def not_installed() -> str:
    """Return the end of a message: which distributions of this project are missing, and how to install them, if any."""
    found = map(PLUGIN.match, metadata.requires(SERVER) or ())
    missing = sorted(each[1] for each in found if each and not _is_installed(f"ensemble-{each[1]}"))
    if not missing:
        return ""
    # No index has them, and a stranger may take their names there: the folders of a checkout, or the wheels' files.
    folders = [place / each for each in missing for place in (PACKAGES, PACKAGES / "plugins")]
    what = [f"-e {folder}" for folder in folders if folder.is_dir()] or [f"ensemble_{each}-*.whl" for each in missing]
    return f"; not installed here: {', '.join(f'ensemble-{each}' for each in missing)} (pip install {' '.join(what)})"


def _is_installed(distribution: str) -> bool:
    try:
        metadata.distribution(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True


@cache
def find(group: str, name: str) -> Any:
    """Import the object that a name of a group, or an import string, stands for.

    Raises:
        ValueError: no plugin has the name, two plugins have it, or the import fails.
    """
    if ":" in name:
        return _imported(name)
    found = {entry.value for entry in _installed(group).select(name=name)}
    if not found:
        known = names(group)
        raise ValueError(
            f"no installed plugin has {name!r}{did_you_mean(name, known) or not_installed()} (there are "
            f"{', '.join(known)}); code of your own is named as `module:name`"
        )
    if len(found) > 1:
        raise ValueError(f"{name!r} is in {' and '.join(sorted(found))}; name one as `module:name`")
    return _imported(found.pop())


def find_class(group: str, name: str, base: type) -> Any:
    """Import a subclass of `base`; raises ValueError as `find` does, and if the object is none."""
    found = find(group, name)
    if not (isinstance(found, type) and issubclass(found, base)):
        raise ValueError(f"{name!r} is no subclass of {base.__module__}.{base.__qualname__}")
    return found


def _imported(value: str) -> Any:
    module, _, path = value.partition(":")
    try:
        found: Any = import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    # What a foreign module raises may be anything.
    except Exception as err:
        raise ValueError(f"{value!r} can't be imported: {type(err).__name__}: {err}") from err
    return found
