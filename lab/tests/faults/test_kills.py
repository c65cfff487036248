import signal
import sys
from contextlib import suppress

import psutil
import pytest

from lab.faults import kills
from lab.faults.kills import KILLS, PARTS, Broken, Served, shown
from lab.rows import table

FATES = [
    {"number": 1, "killed": "HAProxy", "moment": "load", "outcome": "healed", "cleared": 0, "failure": ""},
    {"number": 2, "killed": "HAProxy", "moment": "load", "outcome": "late", "cleared": 0, "failure": "a traceback"},
    {"number": 3, "killed": "GCS", "moment": "stop", "outcome": "ended", "cleared": 7, "failure": ""},
    {"campaign": "kills", "error": "another Ray was ended"},
]


def test_each_part_at_each_moment_has_a_line():
    found = table(KILLS.columns, shown(FATES))
    assert found.lines[:2] == [
        ["GCS", "stop", "1", "0", "1", "0", "7", "0"],
        ["HAProxy", "load", "2", "1", "0", "1", "0", "1"],
    ]
    assert "another Ray was ended" in found.markdown()
    assert [bool(KILLS.failed(row)) for row in FATES[:3]] == [False, True, False]
    assert KILLS.note(FATES[1]) == "kill 2, HAProxy at its load: a traceback"


@pytest.fixture
def small(tmp_path):
    """Start a script as a server: one that waits, below one that waits for it; and what it prints."""
    made = []

    def make(script):
        made.append(Served(tmp_path / "log", (sys.executable, "-u", "-c", script)))
        return made[-1]

    yield make
    for server in made:
        with suppress(psutil.NoSuchProcess):
            server.process.kill()
        server.process.wait()


WAITING = "import time; time.sleep(60)"
# Only the child's own command line has its script in one piece.
PARENT = """
import subprocess, sys
sys.exit(subprocess.run([sys.executable, "-c", "import time; " + "time.sleep(60)"]).returncode)
"""


def test_only_the_process_of_a_part_is_killed(small):
    server = small(PARENT)
    assert server.until(lambda: not server.kill("nobody"), 1)
    # Its first three arguments name it.
    assert server.until(lambda: server.kill(WAITING), 30)
    # The other has ended by itself, and tells of the kill.
    assert server.process.wait(30) == 256 - signal.SIGKILL


def test_what_ignores_ctrl_c_is_told_and_ended(small, monkeypatch):
    monkeypatch.setattr(kills, "END_S", 0.1)
    server = small(f"import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); print('on'); {WAITING}")
    assert server.until(lambda: "on" in server.told(), 30)
    with pytest.raises(Broken, match=r"it did not end 0 s after Ctrl-C: on"):
        server.stop("it")
    assert server.process.poll() is not None


def test_the_parts_are_told_apart():
    assert len(set(PARTS.values())) == len(PARTS)
