import os
import shutil
import stat
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE

import pytest

from scripts.serve import haproxy


def test_the_folder_is_this_users_alone_and_gone_at_the_end(monkeypatch):
    monkeypatch.setattr(os, "environ", {})
    with haproxy.private_folder():
        paths = [Path(os.environ[name]) for name in haproxy.FILES]
        folder = paths[0].parent
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert all(path in {folder, folder / path.name} for path in paths)
        # With the node's id, of 56 characters and a slash, within what HAProxy allows.
        assert max(len(str(path)) for path in paths) + 57 <= 97
        assert haproxy.configuration() is None
        (folder / "node").mkdir()
        (folder / "node" / "haproxy.cfg").touch()
        assert haproxy.configuration() == folder / "node" / "haproxy.cfg"
    assert not folder.exists()


def test_what_keeps_it_from_starting_is_told(monkeypatch, tmp_path):
    monkeypatch.setattr(os, "environ", {haproxy.CONFIGURATION: str(tmp_path / "haproxy.cfg")})
    (tmp_path / "node").mkdir()
    assert haproxy.alert() is None
    log = tmp_path / "node" / "admin.sock.1.1.stderr.log"
    log.write_text("[NOTICE]   (7) : haproxy version is 2.8\n")
    assert haproxy.alert() is None
    log.write_text("[WARNING]  (7) : x\n[ALERT]    (7) : cannot bind socket\n[ALERT]    (7) : failed\n")
    assert haproxy.alert() == "cannot bind socket"


def test_where_the_environment_says_they_stay(monkeypatch, tmp_path):
    monkeypatch.setattr(os, "environ", {haproxy.CONFIGURATION: str(tmp_path / "haproxy.cfg")})
    with haproxy.private_folder():
        assert os.environ == {haproxy.CONFIGURATION: str(tmp_path / "haproxy.cfg")}


SERVER = """
import os
from scripts.serve import haproxy
for name in haproxy.FILES:
    os.environ.pop(name, None)
with haproxy.private_folder():
    print(os.environ[haproxy.CONFIGURATION], flush=True)
    input()
"""


@contextmanager
def server():
    """A server's process and its folder; killed in the end."""
    with subprocess.Popen([sys.executable, "-c", SERVER], stdin=PIPE, stdout=PIPE, text=True) as process:
        folder = Path(process.stdout.readline().strip()).parent
        try:
            yield process, folder
        finally:
            process.kill()
            shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def another(monkeypatch):
    """The folder of a server that starts here."""

    @contextmanager
    def begun():
        monkeypatch.setattr(os, "environ", {})
        with haproxy.private_folder():
            yield

    return begun


def test_what_a_killed_server_left_is_removed_and_what_a_live_one_has_is_not(another):
    with server() as (_, live), server() as (killed, stale):
        with another():
            assert live.exists()
            assert stale.exists()
        killed.kill()
        killed.wait()
        with another():
            assert live.exists()
            assert not stale.exists()


def test_a_live_server_whose_process_has_no_number_here_keeps_its_folder(another):
    """As in another container that shares /tmp: no number in the folder's name tells anything."""
    ended = subprocess.Popen(["true"])
    ended.wait()
    folder = Path(tempfile.mkdtemp(prefix=f"{haproxy.PREFIX}{ended.pid}-", dir="/tmp"))
    try:
        with haproxy._locked(folder), another():
            assert folder.exists()
        with another():
            assert not folder.exists()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def test_what_is_not_this_users_or_has_no_lock_is_left_alone(another, monkeypatch):
    folder = Path(tempfile.mkdtemp(prefix=haproxy.PREFIX, dir="/tmp"))
    try:
        with another():
            assert folder.exists()
        (folder / haproxy.LOCK).touch()
        monkeypatch.setattr(os, "getuid", lambda: 4242)
        with another():
            assert folder.exists()
    finally:
        shutil.rmtree(folder)
