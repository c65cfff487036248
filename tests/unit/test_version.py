"""The version in pyproject.toml is the version of everything; `make version VERSION=...` changes it everywhere."""

import re
import subprocess
import tomllib

from tests.conftest import ROOT

VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
FILES = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
# How files name a version of this project: a distribution, an image, the chart, and a sentence.
NAMED = re.compile(
    r"ensemble-[a-z]+(?:\[[\w,]+\])?==([\d.]+)|\bensemble:(\d+\.\d+\.\d+)|^(?:appVersion|version): \"?([\d.]+)"
    r"|\bVersion (\d+\.\d+\.\d+)|\brelease,? (\d+\.\d+\.\d+)",
    re.MULTILINE,
)
# The Kubernetes tests upgrade to a second image.
OTHER = {"tests/kubernetes/prove.py", "tests/kubernetes/images.sh"}


def test_every_distribution_has_the_version():
    projects = [file for file in FILES if file.endswith("pyproject.toml") and not file.startswith("examples/")]
    found = {file: tomllib.loads((ROOT / file).read_text())["project"]["version"] for file in projects}
    assert len(found) > 5
    assert set(found.values()) == {VERSION}


def test_what_names_a_version_names_this_one():
    kinds = (".toml", ".md", ".yaml", "Dockerfile", ".sh", ".tpl", ".txt")
    read = [file for file in FILES if file.endswith(kinds) and "requirements" not in file and file not in OTHER]
    named = {file: {next(filter(None, each)) for each in NAMED.findall((ROOT / file).read_text())} for file in read}
    assert {file for file, versions in named.items() if versions} > {"README.md", "pyproject.toml", "CHANGELOG.md"}
    assert {file: versions for file, versions in named.items() if versions - {VERSION}} == {}


def test_the_newest_section_of_the_changes_is_this_version():
    sections = re.findall(
        r"^## ([\d.]+) \((?:unreleased|20\d\d-\d\d-\d\d)\)$", (ROOT / "CHANGELOG.md").read_text(), re.M
    )
    assert sections[0] == VERSION
