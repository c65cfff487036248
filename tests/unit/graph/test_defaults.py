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


def in_flight(*placements, **more):
    return config(*placements, **more).ingress.max_concurrent_batches


def test_one_batch_is_in_flight_where_one_process_computes_everything_and_else_two():
    assert in_flight("inline", "inline") == 1
    assert in_flight("inline", "separate") == 2
    assert in_flight("inline", "inline", transformer={"placement": "separate"}) == 2
    assert in_flight("inline", "inline", ingress={"max_batch_size": 4}) == 1
    remote = {"name": "resnet", "kind": "open_inference", "url": "http://127.0.0.1:1", "placement": "inline"}
    assert in_flight(members=[remote]) == 2


@pytest.mark.parametrize("placement", ["inline", "separate"])
def test_what_a_user_sets_stays(placement):
    assert in_flight(placement, placement, ingress={"max_concurrent_batches": 3}) == 3


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
