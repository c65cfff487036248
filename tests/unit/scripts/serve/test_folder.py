import errno
import fcntl
import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE
from types import SimpleNamespace

import pytest

from deployments.ingress.listeners import slot
from scripts.errors import ScriptError
from scripts.home import SETTING
from scripts.serve.folder import LOCK, PREFIX, RAY, _locked, private_folder


@pytest.fixture(autouse=True)
def around(monkeypatch):
    """A folder of one's own in place of /tmp."""
    around = Path(tempfile.mkdtemp(prefix="es-", dir="/tmp"))
    monkeypatch.setenv(SETTING, str(around))
    try:
        yield around
    finally:
        shutil.rmtree(around)


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
            # It may have the logs that say why.
            assert stale.exists()
        with server() as (later, latest):
            later.kill()
            later.wait()
            with private_folder():
                assert live.exists()
                assert latest.exists()
                assert not stale.exists()


def test_a_live_server_whose_process_has_no_number_here_keeps_its_folder(around):
    """As in another container that shares /tmp: no number in the folder's name tells anything."""
    ended = subprocess.Popen(["true"])
    ended.wait()
    folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{ended.pid}-", dir=around))
    try:
        with _locked(folder), private_folder():
            assert folder.exists()
        newer = Path(tempfile.mkdtemp(prefix=PREFIX, dir=around))
        with _locked(newer):
            pass
        with private_folder():
            assert not folder.exists()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(newer, ignore_errors=True)


def test_logs_that_an_error_may_refer_to_stay_and_nothing_else_does(around):
    def fail(has_logs):
        with private_folder() as folder:
            if has_logs:
                (folder / RAY).mkdir()
            raise ScriptError("it fails")

    for has_logs in (True, False):
        with pytest.raises(ScriptError, match="it fails"):
            fail(has_logs)
        assert len(list(around.glob(f"*/{RAY}"))) == len(list(around.iterdir())) == 1


def test_a_place_in_which_others_can_put_another_folder_is_refused_and_the_hint_works(around):
    around.chmod(0o777)
    refused = rf"can change {around}, and so replace .*chmod go-w {around}`"
    with pytest.raises(ScriptError, match=refused), private_folder():
        pass
    assert not list(around.iterdir())
    subprocess.run(["chmod", "go-w", around], check=True)
    with private_folder() as folder:
        assert folder.parent == around


def test_the_folder_around_it_is_made(around, monkeypatch):
    monkeypatch.setenv(SETTING, str(around / "new"))
    with private_folder() as folder:
        assert folder.parent == around / "new"


def test_a_path_that_is_too_long_for_sockets_is_refused_before_ray_starts(tmp_path, monkeypatch):
    long = tmp_path / ("a" * 40)
    long.mkdir()
    monkeypatch.setenv(SETTING, str(long))
    with pytest.raises(ScriptError, match="set RAY_TMPDIR to one of 24 bytes"), private_folder():
        pass


def test_what_is_not_this_users_or_has_no_lock_is_left_alone(around, monkeypatch):
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=around))
    try:
        with private_folder():
            assert folder.exists()
        (folder / LOCK).touch()
        monkeypatch.setattr(os, "getuid", lambda: 4242)
        with private_folder():
            assert folder.exists()
    finally:
        shutil.rmtree(folder)


@pytest.mark.skipif(os.getuid() != 0 or shutil.which("unshare") is None, reason="needs a mount namespace")
def test_a_full_disk_is_named_before_anything_is_written(around):
    code = "from scripts.serve.folder import private_folder\nwith private_folder(): pass"
    mounted = f"mount -t tmpfs -o size=1m none {around} && exec {sys.executable} -c '{code}'"
    done = subprocess.run(["unshare", "--mount", "sh", "-c", mounted], capture_output=True, text=True)
    assert f"{around} has 1 MB free, and a server needs 100; remove files there, or set {SETTING}" in done.stderr


def test_a_file_system_that_runs_no_programs_is_named_at_once(around, monkeypatch):
    found = {name: getattr(os.statvfs(around), name) for name in ("f_frsize", "f_bavail", "f_blocks", "f_bfree")}
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_flag=os.ST_NOEXEC, **found))
    with pytest.raises(ScriptError, match=rf"{around} is mounted `noexec`.*set {SETTING}"), private_folder():
        pass
    assert not list(around.iterdir())


def test_a_file_system_that_holds_no_sockets_is_named_at_once(around, monkeypatch):
    class NoSocket(socket.socket):
        def bind(self, path):
            raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(socket, "socket", NoSocket)
    with pytest.raises(ScriptError, match=rf"{around} can't hold sockets.*set {SETTING}"), private_folder():
        pass
    assert not list(around.iterdir())


def test_a_file_system_without_locks_is_named_at_once(around, monkeypatch):
    def flock(file, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    told = rf"{around} can't hold sockets and locks \(No locks available\).*set {SETTING}"
    with pytest.raises(ScriptError, match=told), private_folder():
        pass
    assert not list(around.iterdir())
