"""Composes the nodes into an application; refuses to be imported where other code hides the packages that it needs."""

from importlib.util import find_spec
from pathlib import Path

for _name in ("deployments", "models"):
    _found = find_spec(_name)
    if _found is not None and Path(__file__).resolve().parent.with_name(_name) not in map(
        Path, _found.submodule_search_locations or ()
    ):
        _place = _found.origin or next(iter(_found.submodule_search_locations or ()), _name)
        raise ImportError(
            f"{_place} hides the package {_name!r} of ensemble-serving, because its folder comes first on the import "
            "path; use `ensemble serve`, for which the working directory comes last, or rename it"
        )
