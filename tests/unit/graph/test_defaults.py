"""What a configuration leaves open."""

import subprocess
import sys

import pytest

from deployments.members import openvino
from graph import defaults
from graph.config import parse

INLINE = {name: {"placement": "inline"} for name in ("transformer", "combiner", "labeler")}


def config(*placements, **more):
    members = [
        {"name": name, "placement": placed} for name, placed in zip(("resnet", "densenet"), placements, strict=False)
    ]
    return parse({"members": members, **INLINE, **more})


@pytest.mark.parametrize(("cpus", "threads"), [(1, 1), (2, 1), (5, 2), (16, 8)])
def test_members_share_the_cores_unless_threads_are_set(cpus, threads, monkeypatch):
    made = []
    monkeypatch.setattr(defaults, "available_cpus", lambda: cpus)
    monkeypatch.setattr(openvino.OpenVino, "make", lambda self, *_: made.append(self.threads))
    members = config("inline", "inline").members
    assert defaults.sharing(config("inline", "inline")) == 2
    defaults.make(members[0], 2, "models", None, 8)
    defaults.make(members[1].model_copy(update={"threads": 7}), 2, "models", None, 8)
    assert made == [threads, 7]


def test_a_configuration_is_read_without_ray():
    told = (
        "import sys, graph.config, graph.agreement; print([n for n in ('ray', 'torch', 'fastapi') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr
