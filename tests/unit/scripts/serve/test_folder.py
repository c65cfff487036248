import os
import shutil
import stat
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE

from graph.front import slot
from scripts.serve.folder import LOCK, PREFIX, _locked, private_folder


def test_the_folder_is_this_users_alone_and_gone_at_the_end():
    with private_folder() as folder:
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        # Within what HAProxy allows for the path of a socket, 97 bytes.
        assert len(str(slot.path(folder, "http", slot.SLOTS))) < 40
    assert not folder.exists()


SERVER = """
from scripts.serve.folder import private_folder
with private_folder() as folder:
    print(folder, flush=True)
    input()
"""


@contextmanager
def server():
    """A server's process and its folder; killed in the end."""
    with subprocess.Popen([sys.executable, "-c", SERVER], stdin=PIPE, stdout=PIPE, text=True) as process:
        folder = Path(process.stdout.readline().strip())
        try:
            yield process, folder
        finally:
            process.kill()
            shutil.rmtree(folder, ignore_errors=True)


def test_what_a_killed_server_left_is_removed_and_what_a_live_one_has_is_not():
    with server() as (_, live), server() as (killed, stale):
        with private_folder():
            assert live.exists()
            assert stale.exists()
        killed.kill()
        killed.wait()
        with private_folder():
            assert live.exists()
            assert not stale.exists()


def test_a_live_server_whose_process_has_no_number_here_keeps_its_folder():
    """As in another container that shares /tmp: no number in the folder's name tells anything."""
    ended = subprocess.Popen(["true"])
    ended.wait()
    folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{ended.pid}-", dir="/tmp"))
    try:
        with _locked(folder), private_folder():
            assert folder.exists()
        with private_folder():
            assert not folder.exists()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def test_what_is_not_this_users_or_has_no_lock_is_left_alone(monkeypatch):
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir="/tmp"))
    try:
        with private_folder():
            assert folder.exists()
        (folder / LOCK).touch()
        monkeypatch.setattr(os, "getuid", lambda: 4242)
        with private_folder():
            assert folder.exists()
    finally:
        shutil.rmtree(folder)
