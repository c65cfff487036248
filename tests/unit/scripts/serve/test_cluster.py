"""What a server that ends leaves: nothing."""

import subprocess
import sys

# Two processes below this one, of which the first look sees none: as where their parent ends while the list is made.
ENDS = """
import subprocess, sys
import psutil
from scripts.serve.cluster import Cluster

sleeps = [subprocess.Popen(["sleep", "600"], start_new_session=True) for _ in range(2)]
true, looks = psutil.Process.children, []

def children(process, recursive=False):
    looks.append(process)
    return [] if len(looks) == 1 else true(process, recursive)

psutil.Process.children = children
Cluster.end(object.__new__(Cluster))
print(sum(psutil.pid_exists(sleep.pid) for sleep in sleeps))
"""


def test_a_process_that_the_first_look_misses_is_ended():
    done = subprocess.run([sys.executable, "-c", ENDS], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("0\n", "")
