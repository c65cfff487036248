"""What a server that ends leaves: nothing."""

import subprocess
import sys

import psutil
import pytest

from scripts.serve import cluster

# Two processes below this one, of which the first look sees none: as where their parent ends while the list is made.
ENDS = """
import subprocess, sys
import psutil
from scripts.serve.cluster import Cluster, end_all_below

sleeps = [subprocess.Popen(["sleep", "600"], start_new_session=True) for _ in range(2)]
true, looks = psutil.Process.children, []

def children(process, recursive=False):
    looks.append(process)
    return [] if len(looks) == 1 else true(process, recursive)

psutil.Process.children = children
WAY
print(sum(psutil.pid_exists(sleep.pid) for sleep in sleeps))
"""


@pytest.mark.parametrize("way", ["Cluster.end(object.__new__(Cluster))", "end_all_below(psutil.Process.kill)"])
def test_a_process_that_the_first_look_misses_is_ended(way):
    done = subprocess.run([sys.executable, "-c", ENDS.replace("WAY", way)], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("0\n", "")


GUARDED = """
import subprocess
from scripts.serve.cluster import marked
from scripts.serve.cluster import guarded

with guarded():
    print(subprocess.Popen(["sleep", "600"], env=marked(), start_new_session=True, stdout=-3).pid, flush=True)
    input()
"""


def test_what_a_killed_server_has_started_ends():
    """While the killed one is a zombie, too, as it is below a shell that looks away."""
    with subprocess.Popen([sys.executable, "-c", GUARDED], stdin=-1, stdout=-1, text=True) as server:
        sleep = psutil.Process(int(server.stdout.readline()))
        server.kill()
        assert sleep.wait(60) is None
        assert psutil.Process(server.pid).status() == psutil.STATUS_ZOMBIE


def test_a_guardian_ends_with_its_server():
    with subprocess.Popen([sys.executable, "-c", GUARDED], stdin=-1, stdout=-1, text=True) as server:
        server.stdout.readline()
        below = psutil.Process(server.pid).children()
        server.communicate("\n")
        assert len(below) == 2
        [sleep] = [process for process in below if process.is_running() and process.name() == "sleep"]
        sleep.kill()
    _, alive = psutil.wait_procs(below, timeout=30)
    assert not alive


def test_a_leftover_that_ends_by_itself_keeps_no_other_alive(monkeypatch):
    with subprocess.Popen(["sleep", "60"]) as gone:
        process = psutil.Process(gone.pid)
        gone.kill()
    left = subprocess.Popen(["sleep", "60"])
    monkeypatch.setattr(cluster, "leftovers", lambda: iter([process, psutil.Process(left.pid)]))
    try:
        cluster.clear_leftovers()
        assert not psutil.pid_exists(left.pid)
    finally:
        left.kill()
        left.wait()
