"""What a server that ends leaves: nothing."""

import subprocess
import sys

import pytest

# Two processes below this one, of which the first look sees none: as where their parent ends while the list is made.
ENDS = """
import subprocess, sys
import psutil
from scripts.serve.cluster import Cluster, end_at_once

sleeps = [subprocess.Popen(["sleep", "600"], start_new_session=True) for _ in range(2)]
true, looks = psutil.Process.children, []

def children(process, recursive=False):
    looks.append(process)
    return [] if len(looks) == 1 else true(process, recursive)

psutil.Process.children = children
WAY
print(sum(psutil.pid_exists(sleep.pid) for sleep in sleeps))
"""


@pytest.mark.parametrize("way", ["Cluster.end(object.__new__(Cluster))", "end_at_once()"])
def test_a_process_that_the_first_look_misses_is_ended(way):
    done = subprocess.run([sys.executable, "-c", ENDS.replace("WAY", way)], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("0\n", "")
