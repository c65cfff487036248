"""The CPUs of a machine, of a container and of a replica."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from deployments import cpus


def machine(folder, siblings, nodes):
    """A `/sys/devices/system` of hyper-threads by CPU and of NUMA nodes."""
    for cpu, text in siblings.items():
        (topology := folder / f"cpu/cpu{cpu}/topology").mkdir(parents=True)
        (topology / "thread_siblings_list").write_text(text + "\n")
    for number, text in enumerate(nodes):
        (node := folder / f"node/node{number}").mkdir(parents=True)
        (node / "cpulist").write_text(text + "\n")
    return folder


@pytest.fixture
def cgroups(tmp_path, monkeypatch):
    """The folder of the cgroups of a machine with two cores, on which this process is in a service's."""
    (own := tmp_path / "own").write_text("1:name=systemd:/\n0::/system.slice/ensemble.service\n")
    monkeypatch.setattr(cpus, "OWN_CGROUP", own)
    monkeypatch.setattr(cpus, "CGROUPS", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    (tmp_path / "system.slice/ensemble.service").mkdir(parents=True)
    return tmp_path


@pytest.mark.parametrize("folder", [".", "system.slice", "system.slice/ensemble.service"])
@pytest.mark.parametrize(("quota", "expected"), [("max 100000", 2), ("150000 100000", 1), ("50000 100000", 1)])
def test_a_quota_is_rounded_down_to_at_least_one(quota, expected, folder, cgroups):
    (cgroups / folder / "cpu.max").write_text(quota + "\n")
    assert cpus.available_cpus() == expected


@pytest.mark.parametrize("folder", ["cpu", "cpu/docker", "cpu/docker/abc"])
@pytest.mark.parametrize(("quota", "expected"), [("-1", 2), ("150000", 1), ("50000", 1)])
def test_a_quota_of_the_first_version(quota, expected, folder, cgroups):
    (cgroups / "own").write_text("3:cpu,cpuacct:/docker/abc\n2:cpuset:/other\n")
    (cgroups / folder).mkdir(parents=True)
    (cgroups / folder / "cpu.cfs_quota_us").write_text(quota + "\n")
    (cgroups / folder / "cpu.cfs_period_us").write_text("100000\n")
    assert cpus.available_cpus() == expected


def test_without_cgroups_all_cores_may_be_used(cgroups):
    (cgroups / "own").unlink()
    assert cpus.available_cpus() == 2


def test_hyper_threads_are_one_core_and_numa_nodes_come_one_after_the_other(tmp_path):
    system = machine(
        tmp_path,
        {0: "0,4", 1: "1,5", 2: "2,6", 3: "3,7", 4: "0,4", 5: "1,5", 6: "2,6", 7: "3,7"},
        ["0,2,4,6", "1,3,5,7"],
    )
    assert cpus.group_by_core(range(8), system) == [(0, 4), (2, 6), (1, 5), (3, 7)]
    # A container that may use half of them.
    assert cpus.group_by_core([4, 5, 6], system) == [(4,), (6,), (5,)]


EIGHT_ON_FOUR = {cpu: f"{cpu % 4},{cpu % 4 + 4}" for cpu in range(8)}
# A laptop: four cores of one thread, and two of two threads.
LAPTOP = {0: "0", 1: "1", 2: "2", 3: "3", 4: "4-5", 5: "4-5", 6: "6-7", 7: "6-7"}


@pytest.mark.parametrize(
    ("siblings", "nodes", "cores", "first"),
    [
        (EIGHT_ON_FOUR, ["0-7"], 4, (0, 1, 2, 3, 4, 5, 6, 7)),
        (EIGHT_ON_FOUR, ["0,2,4,6", "1,3,5,7"], 4, (0, 2, 1, 3, 4, 6, 5, 7)),
        (LAPTOP, ["0-7"], 6, (0, 1, 2, 3, 4, 6, 5, 7)),
        ({cpu: str(cpu) for cpu in range(4)}, ["0-3"], 4, (0, 1, 2, 3)),
    ],
)
def test_each_core_counts_and_comes_once_before_its_second_thread(siblings, nodes, cores, first, tmp_path, monkeypatch):
    system = machine(tmp_path / "system", siblings, nodes)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(siblings))
    monkeypatch.setattr(cpus, "CGROUPS", tmp_path)
    assert cpus.available_cores(system) == cores
    assert cpus.available_cpus() == len(siblings)
    assert cpus.usable(system) == first


@pytest.mark.parametrize(
    ("quota", "cores", "text"),
    [
        ("max 100000", 4, "4 cores (8 CPUs: some cores have two threads)"),
        ("600000 100000", 4, "4 cores (8 CPUs: some cores have two threads; a quota of 6 CPUs on 4 cores)"),
        ("250000 100000", 2, "2 cores (8 CPUs: some cores have two threads; a quota of 2.5 CPUs on 4 cores)"),
    ],
)
def test_the_cores_within_a_quota(quota, cores, text, cgroups, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    (cgroups / "cpu.max").write_text(quota + "\n")
    system = machine(tmp_path / "system", EIGHT_ON_FOUR, ["0-7"])
    assert (cpus.available_cores(system), cpus.describe_cores(system)) == (cores, text)


def test_parts_have_whole_cores_and_no_cpu_in_common(tmp_path):
    system = machine(tmp_path, {0: "0-1", 1: "0-1", 2: "2-3", 3: "2-3", 4: "4-5", 5: "4-5"}, ["0-5"])
    assert [cpus.share(range(6), index, 3, system) for index in range(3)] == [(0, 1), (2, 3), (4, 5)]
    assert [cpus.share(range(6), index, 2, system) for index in range(2)] == [(0, 1), (2, 3, 4, 5)]


def test_more_parts_than_cores_have_one_each(tmp_path):
    assert [cpus.share([0, 1], index, 3, tmp_path) for index in range(3)] == [(0,), (0,), (1,)]


def test_a_list_of_the_kernel():
    assert cpus.parse_cpu_list("0-2,8\n") == {0, 1, 2, 8}
    with pytest.raises(ValueError, match="invalid literal"):
        cpus.parse_cpu_list("all")


def test_every_thread_of_a_process_is_pinned():
    program = (
        "import os, threading; from deployments.cpus import pin, usable; stop = threading.Event(); seen = []\n"
        "def wait(): stop.wait(); seen.append(os.sched_getaffinity(0))\n"
        "thread = threading.Thread(target=wait); thread.start(); first = usable()[0]; pin([first]); stop.set()\n"
        "thread.join(); print(seen == [{first}], usable() == (first,))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "True True\n", done.stderr
