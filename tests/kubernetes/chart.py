"""The chart as Helm renders it, and what Kubernetes' Pod Security Standard "restricted" says about its pods."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import yaml

from tests.conftest import ROOT

FOLDER = ROOT / "configs" / "kubernetes"
CHART, RUNTIME = FOLDER / "ensemble", FOLDER / "serving-runtime.yaml"
TOOLS = Path(__file__).parent / "tools.sh"
VERSION = re.search(r"^version=(\S+)", TOOLS.read_text(), re.MULTILINE)[1]
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "ensemble-serving" / f"helm-{VERSION}"
HELM, RESTRICTED = CACHE / "helm", CACHE / "restricted"
# Whether both are there, or can be built.
POSSIBLE = RESTRICTED.exists() or shutil.which("go") is not None


def tool(program, *arguments, given=None):
    """Run a program of tools.sh, which is built where it has not been built."""
    if not RESTRICTED.exists():
        subprocess.run([TOOLS], check=True)
    return subprocess.run([program, *arguments], input=given, capture_output=True, text=True)


def helm(values, *arguments, release="ensemble"):
    """Let Helm render the chart."""
    return tool(HELM, "template", release, CHART, "--values", "-", *arguments, given=yaml.safe_dump(values))


def rendered(values, *arguments, **options):
    """The documents that Helm renders from these values."""
    done = helm(values, *arguments, **options)
    assert done.returncode == 0, done.stderr
    return [each for each in yaml.safe_load_all(done.stdout) if each]


def pods(document):
    """The templates of pods in a document."""
    spec = document.get("spec", {})
    if document["kind"] == "RayService":
        cluster = spec["rayClusterConfig"]
        return [group["template"] for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"])]
    if document["kind"] == "ClusterServingRuntime":
        return [{"metadata": {}, "spec": spec}]
    return [spec["template"]] if "template" in spec else []


def refused(templates):
    """Why the restricted standard refuses templates of pods, a line for each."""
    done = tool(RESTRICTED, given=json.dumps(templates))
    assert done.returncode == 0, done.stderr
    return done.stdout
