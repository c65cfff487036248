"""Composes the nodes into an application; refuses to be imported where other code hides the package that it needs."""

from importlib.util import find_spec
from pathlib import Path

_found = find_spec("deployments")
_places = [] if _found is None else [Path(each) for each in _found.submodule_search_locations or ()]
if _found is not None and Path(__file__).resolve().parent.with_name("deployments") not in _places:
    raise ImportError(
        f"{_found.origin or next(iter(_places), '')} hides the package 'deployments' of ensemble-serving, because its "
        "folder comes first on the import path; use `ensemble serve`, for which the working directory comes last, or "
        "rename it"
    )
