import signal
import sys
from contextlib import suppress

import psutil
import pytest

from lab.faults import campaign, kills
from lab.faults.kills import PARTS, Broken, Served

FATE = {"number": 1, "killed": "HAProxy", "moment": "load", "outcome": "healed", "cleared": 0, "failure": ""}


def test_each_kill_has_a_line_and_a_broken_rule_ends_with_1(monkeypatch, tmp_path):
    fates = [FATE, {**FATE, "number": 2, "outcome": "late", "cleared": 7}]
    monkeypatch.setattr(campaign, "set_up", lambda: None)
    monkeypatch.setattr(kills, "measure", lambda *_: fates)
    kills.main(["--markdown", str(tmp_path / "kills.md")])
    *_, first, second = (tmp_path / "kills.md").read_text().splitlines()
    assert (first, second) == ("| 1 | HAProxy | load | healed | 0 |  |", "| 2 | HAProxy | load | late | 7 |  |")
    fates.append({**FATE, "failure": "the server printed a traceback"})
    with pytest.raises(SystemExit) as end:
        kills.main([])
    assert end.value.code == 1


@pytest.fixture
def small(tmp_path):
    """Start a script as a server: one that waits, below one that waits for it; and what it prints."""
    made = []

    def make(script):
        made.append(Served("it", tmp_path / "log", (sys.executable, "-u", "-c", script)))
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
    with pytest.raises(Broken, match=r"it did not end 0 s after Ctrl-C: on"), server:
        pass
    assert server.process.poll() is not None


def test_the_parts_are_told_apart():
    assert len(set(PARTS.values())) == len(PARTS)
