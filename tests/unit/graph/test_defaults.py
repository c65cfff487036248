"""What a configuration leaves open."""

import subprocess
import sys

import pytest

from deployments import cpus as cpus_of_machine
from deployments.contract.errors import ConfigurationError
from deployments.members import openvino
from graph import placement
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
    monkeypatch.setattr(placement, "available_cores", lambda: cpus)
    monkeypatch.setattr(openvino.OpenVino, "make", lambda self, *_: made.append(self.threads))
    members = config("inline", "inline").members
    assert placement.sharing(config("inline", "inline"), members[0]) == 2
    placement.make(members[0], 2, "models", None, 8)
    placement.make(members[1].model_copy(update={"threads": 7}), 2, "models", None, 8)
    assert made == [threads, 7]


def test_a_configuration_is_read_without_ray():
    told = (
        "import sys, graph.config, graph.signature; print([n for n in ('ray', 'torch', 'fastapi') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr


def pinned(cpus, **more):
    members = [{"name": name, **({} if each is None else {"cpus": each})} for name, each in cpus.items()]
    return parse({"members": members, **more})


def test_members_with_cpus_of_their_own_share_them_with_nobody():
    found = pinned({"resnet": "auto", "densenet": None, "student": None})
    assert [placement.sharing(found, member) for member in found.members] == [1, 2, 2]
    inline = config("inline", "separate", cpus="auto")
    assert [placement.sharing(inline, member) for member in inline.members] == [1, 2]


def test_members_of_a_cascade_take_turns_so_each_has_all_cores():
    cascade = {"order": ["resnet", "densenet"], "exit_at": [0.9]}
    found = config("inline", "inline", ensemble={"cascade": cascade})
    assert [placement.sharing(found, member) for member in found.members] == [1, 1]


def test_replicas_of_this_machine_share_the_threads_that_are_left_open(monkeypatch):
    made = []
    monkeypatch.setattr(placement, "available_cores", lambda: 16)
    monkeypatch.setattr(openvino.OpenVino, "make", lambda self, *_: made.append(self.threads))
    token = placement.REPLICAS.set(4)
    try:
        placement.make(config("inline", "inline").members[0], 2, "models", None, 8)
    finally:
        placement.REPLICAS.reset(token)
    assert made == [2]


@pytest.mark.parametrize(
    ("cpus", "name", "rank", "replicas", "expected"),
    [
        ({"resnet": [1, 2], "densenet": "auto"}, "resnet", 0, 1, (1, 2)),
        # What others name is left to them.
        ({"resnet": [1, 2], "densenet": "auto"}, "densenet", 0, 1, (0, 3, 4, 5, 6, 7)),
        ({"resnet": "auto", "densenet": "auto"}, "resnet", 0, 1, (0, 1, 2, 3)),
        ({"resnet": "auto", "densenet": "auto"}, "densenet", 0, 2, (4, 5)),
        ({"resnet": "auto", "densenet": "auto"}, "densenet", 1, 2, (6, 7)),
    ],
)
def test_a_replica_is_pinned_to_its_own_part(cpus, name, rank, replicas, expected, monkeypatch):
    got = []
    monkeypatch.setattr(cpus_of_machine, "usable", lambda: tuple(range(8)))
    monkeypatch.setattr(cpus_of_machine, "group_by_core", lambda cpus, _: [(cpu,) for cpu in sorted(cpus)])
    monkeypatch.setattr(cpus_of_machine, "pin", got.append)
    assert placement.pinning(pinned(cpus), name).pin(rank, replicas) == expected
    assert got == [expected]


def test_a_canary_is_pinned_as_its_member():
    found = parse({"members": [{"name": "a", "cpus": [0], "canary": {"version": 1, "share": 0.1}}, {"name": "b"}]})
    assert placement.pinning(found, "a-canary") == placement.pinning(found, "a") == placement.Pinning((0,))
    assert placement.pinning(found, "b") is None


def test_a_cpu_that_is_not_there_is_refused():
    with pytest.raises(ConfigurationError, match=r"cpus: \[8191\] can't be used; there are \["):
        placement.Pinning((8191,)).pin(0, 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"members": [{"name": "resnet", "cpus": [0, 1]}, {"name": "densenet", "cpus": [1]}]}, "both have CPU 1"),
        ({"members": [{"name": "resnet", "cpus": [0]}], "cpus": [0]}, "both have CPU 0"),
        ({"members": [{"name": "resnet", "cpus": [0], "placement": "inline"}]}, "no process of its own"),
        ({"members": [{"name": "resnet", "cpus": []}]}, "members.0.cpus"),
        ({"members": [{"name": "resnet", "cpus": "all"}]}, "auto"),
    ],
)
def test_cpus_that_can_not_be_are_refused(arguments, message):
    with pytest.raises(ConfigurationError, match=message):
        parse(arguments)
