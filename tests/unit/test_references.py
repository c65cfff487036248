"""What docstrings, comments and text files name is there: files of the repository, modules, and what modules define."""

import ast
import re
import subprocess
from functools import cache
from pathlib import Path, PurePath

import pytest

from tests.conftest import ROOT

FILES = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
KNOWN = {*FILES, *(str(folder) for file in FILES for folder in PurePath(file).parents)}
TEXTS = {
    ".py",
    ".md",
    ".toml",
    ".yaml",
    ".yml",
    ".sh",
    ".cfg",
    ".conf",
    ".proto",
    ".service",
    ".txt",
    ".js",
    ".html",
    "",
}
FOLDERS = sorted({file.split("/")[0] for file in FILES if "/" in file})
# The folder that each package of Python is in.
PACKAGES = {
    PurePath(file).parent.name: PurePath(file).parent
    for file in FILES
    if file.endswith("/__init__.py") and str(PurePath(file).parent.parent / "__init__.py") not in FILES
}
OURS = sorted(
    name for name in PACKAGES if name.startswith("ensemble_") or name in {"deployments", "graph", "scripts", "lab"}
)
PATH = re.compile(rf"(?<![\w/.:@-])((?:{'|'.join(map(re.escape, FOLDERS))})/[\w./*{{}}<>-]*[\w*>}}/])")
MODULE = re.compile(rf"(?<![\w./\"-])((?:{'|'.join(OURS)})(?:\.[A-Za-z_]\w*)+)")
# Folders that a reader makes, an option's beginning, and names that tests read beside the code.
MADE = ("models/my_model/", "models/mine/", "tests/server/remote/requirements", "models/__init__.py")
# What a release removed is named in the list of changes.
HISTORY = {"CHANGELOG.md"}
# What metadata of models says that an earlier release has made.
EARLIER = {"scripts.prepare", "scripts.quantize", "scripts.train"}


def texts(file):
    """The file's text; of Python, docstrings, comments and strings, but no strings of tests, which name what is not."""
    text = (ROOT / file).read_text(encoding="utf-8")
    if not file.endswith(".py"):
        return text
    nodes = list(ast.walk(ast.parse(text)))
    described = (
        node for node in nodes if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    )
    constants = (
        [] if "tests" in PurePath(file).parts else [node.value for node in nodes if isinstance(node, ast.Constant)]
    )
    comments = re.findall(r"(?:^|\s)#.*$", text, re.M)
    strings = [ast.get_docstring(node) for node in described] + constants + comments
    return "\n".join(each for each in strings if isinstance(each, str))


@cache
def defined(module):
    """The names that a module of the repository defines or imports; None if there is no such module."""
    top, *below = module.split(".")
    place = PACKAGES[top].joinpath(*below)
    if str(place / "__init__.py") in FILES:
        place = place / "__init__"
    elif str(place) in KNOWN:
        return set()
    if f"{place}.py" not in FILES:
        return None
    names = set()
    for node in ast.walk(ast.parse((ROOT / f"{place}.py").read_text(encoding="utf-8"))):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Name | ast.Attribute):
            names.add(node.id if isinstance(node, ast.Name) else node.attr)
        elif isinstance(node, ast.alias):
            names.add((node.asname or node.name).partition(".")[0])
    return names


def is_there(name):
    """Whether a dotted name is a module, or something that a module defines."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        if (names := defined(".".join(parts[:count]))) is not None:
            return count == len(parts) or not names.isdisjoint(parts[count : count + 1]) or "__getattr__" in names
    return False


def dead(file):
    """The paths and names in a file that are not there."""
    text = texts(file)
    paths = [found.rstrip("/.") for found in PATH.findall(text) if not found.startswith(MADE)]
    yield from (path for path in paths if not any(each in path for each in "*{<") and path not in KNOWN)
    groups = tuple(
        f"ensemble_serving.{kind}"
        for kind in ("commands", "combiners", "features", "members", "protocols", "repositories")
    )
    yield from (name for name in MODULE.findall(text) if name not in {*groups, *EARLIER} and not is_there(name))


@pytest.mark.parametrize("folder", ["", *FOLDERS])
def test_what_a_text_names_is_there(folder):
    chosen = [file for file in FILES if (file.split("/")[0] if "/" in file else "") == folder and file not in HISTORY]
    read = [file for file in chosen if Path(file).suffix in TEXTS and (ROOT / file).is_file()]
    assert {file: found for file in read if (found := sorted(set(dead(file))))} == {}


def test_a_dead_name_is_found():
    assert is_there("deployments.entry_points.find")
    assert is_there("deployments.pipeline")
    assert not is_there("deployments.repository.writing")
    assert not is_there("deployments.entry_points.absent_at")
