import os
import stat
import subprocess
import tempfile
from pathlib import Path

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


def test_what_a_killed_server_left_is_removed_and_what_a_live_one_has_is_not(monkeypatch):
    monkeypatch.setattr(os, "environ", {})
    ended = subprocess.Popen(["true"])
    ended.wait()
    stale, live = (
        Path(tempfile.mkdtemp(prefix=f"{haproxy.PREFIX}{pid}-", dir="/tmp")) for pid in (ended.pid, os.getpid())
    )
    try:
        with haproxy.private_folder():
            assert not stale.exists()
            assert live.exists()
    finally:
        live.rmdir()
