"""What the lab imports is declared: by the lab, by the server and its extras, or for developers."""

import ast
import sys
import tomllib
from importlib.metadata import packages_distributions

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.conftest import ROOT

LAB = ROOT / "lab"
# What runs in environments of its own, with other servers.
PEERS = LAB / "benchmark" / "peers"


def imported(file):
    """The modules that a file imports, by the first part of their names."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (each.name.partition(".")[0] for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module.partition(".")[0]


def test_what_the_lab_imports_is_declared():
    lab, server = (tomllib.loads((folder / "pyproject.toml").read_text()) for folder in (LAB, ROOT))
    extras = [*server["project"]["optional-dependencies"].values(), server["dependency-groups"]["dev"]]
    groups = [lab["project"]["dependencies"], server["project"]["dependencies"], *extras]
    declared = {canonicalize_name(Requirement(each).name) for group in groups for each in group} | {"ensemble-lab"}
    known = {name: set(map(canonicalize_name, found)) for name, found in packages_distributions().items()}
    files = [file for file in LAB.rglob("*.py") if not file.is_relative_to(PEERS) and "tests" not in file.parts]
    names = {name for file in files for name in imported(file)} - sys.stdlib_module_names
    assert len(names) > 20
    assert {name for name in names if name in known and not known[name] & declared} == set()
