"""Finds code that other packages bring: by the name of an entry point, or by an import string `module:name`.

This project's own kinds of members, combinations, features and schemes of repositories are found in the same way.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, NamedTuple

# The groups of entry points.
MEMBERS = "ensemble_serving.members"
COMBINERS = "ensemble_serving.combiners"
FEATURES = "ensemble_serving.features"
PROTOCOLS = "ensemble_serving.protocols"
REPOSITORIES = "ensemble_serving.repositories"
PLUGINS_FOLDER = Path(__file__).parent.parent / "packages" / "plugins"


class Plugin(NamedTuple):
    """A distribution of this project that may be installed beside the server.

    Attributes:
        extra: its folder, and the server's extra that installs it.
        groups: of the entry point.
        paths: beginnings of its paths over HTTP and gRPC; `/` stands for itself alone.
        needs: the extras of this project's distributions that it needs.
    """

    extra: str
    groups: tuple[str, ...]
    paths: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()


# By the name of an entry point that the distribution brings.
PLUGINS = {
    **dict.fromkeys(("https", "http", "s3", "gs", "az", "hf"), Plugin("sources", (REPOSITORIES,))),
    "open_inference": Plugin("interop", (MEMBERS,), needs=("features",)),
    "onnxruntime": Plugin("onnxruntime", (MEMBERS,), needs=("features", "interop")),
    "tensorflow_serving": Plugin(
        "interop", (MEMBERS, PROTOCOLS), ("/v1/models", "/tensorflow.serving."), ("features",)
    ),
    "seldon": Plugin("interop", (PROTOCOLS,), ("/api/v1.0/", "/seldon.protos."), needs=("features",)),
    "feedback": Plugin("features", (FEATURES, PROTOCOLS), ("/feedback", "/ensemble.FeedbackService/")),
    "page": Plugin("features", (FEATURES,), ("/", "/page/", "/stats")),
    **dict.fromkeys(("cache", "canary", "cascade", "receipt", "shadow"), Plugin("features", (FEATURES,))),
    "loading": Plugin(
        "features", (FEATURES,), ("/v2/repository/models", "/inference.GRPCInferenceService/RepositoryModel")
    ),
    "shared_memory": Plugin(
        "interop",
        (PROTOCOLS,),
        ("/v2/systemsharedmemory", "/inference.GRPCInferenceService/SystemSharedMemory"),
        ("features",),
    ),
}


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of the message that a name is unknown: the known name that is most like it, if any."""
    return "".join(f"; did you mean {close!r}?" for close in get_close_matches(name, list(known), 1))


def names(group: str) -> list[str]:
    """List the names of a group's entry points, sorted."""
    return sorted(set(entry_points(group=group).names))


def elsewhere(group: str) -> set[str]:
    """Return the names of a group's entry points that other distributions of this project bring."""
    return {name for name, plugin in PLUGINS.items() if group in plugin.groups}


def absent(name: str) -> str:
    """Explain which distribution brings an entry point of `PLUGINS`, and how it is installed."""
    extra = PLUGINS[name].extra
    folders = [PLUGINS_FOLDER / each for each in (*PLUGINS[name].needs, extra)]
    is_checkout = all(folder.is_dir() for folder in folders)
    what = " ".join(f"-e {folder}" for folder in folders) if is_checkout else f"'ensemble-serving[{extra}]'"
    return f"{name} is part of ensemble-{extra}, which is not installed here; pip install {what}"


def absent_at(path: str) -> str:
    """Explain as `absent` does which distribution has a path of HTTP or gRPC; empty if none has, or it is installed."""
    missing = (name for name, plugin in PLUGINS.items() if not any(name in names(group) for group in plugin.groups))
    return next((absent(name) for name in missing if _has(PLUGINS[name], path)), "")


def _has(plugin: Plugin, path: str) -> bool:
    return any(path == each if each == "/" else path.startswith(each) for each in plugin.paths)


@cache
def find(group: str, name: str) -> Any:
    """Import the object that a name of a group, or an import string, stands for.

    Raises:
        ValueError: no package brings the name, two packages do, or the import fails.
    """
    if ":" in name:
        return _imported(name)
    found = {entry.value for entry in entry_points(group=group, name=name)}
    if not found:
        if name in elsewhere(group):
            raise ValueError(absent(name))
        known = names(group)
        raise ValueError(
            f"no installed package brings {name!r}{did_you_mean(name, known)} (there are {', '.join(known)}); "
            "code of your own is named as `module:name`"
        )
    if len(found) > 1:
        raise ValueError(f"{name!r} is brought by {' and '.join(sorted(found))}; name one as `module:name`")
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
