import os

import pytest

from scripts import home
from scripts.home import ensure_home


@pytest.fixture(autouse=True)
def around(tmp_path, monkeypatch):
    monkeypatch.setenv(home.SETTING, str(tmp_path))
    return tmp_path / f"ensemble-serving-{os.getuid()}"


def test_who_has_a_home_keeps_it(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    ensure_home()
    assert os.environ["HOME"] == str(tmp_path)


@pytest.mark.parametrize("case", ["a user without a name", "read-only", "/"])
def test_who_has_none_gets_a_private_one(around, monkeypatch, case):
    if case == "a user without a name":
        monkeypatch.delenv("HOME")
        monkeypatch.setattr(home.Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
    else:
        monkeypatch.setenv("HOME", "/")
        # Root may write anywhere.
        monkeypatch.setattr(os, "access", lambda path, mode: False)
    ensure_home()
    assert os.environ["HOME"] == str(around)
    assert around.stat().st_mode & 0o777 == 0o700
    around.chmod(0o777)
    with pytest.raises(PermissionError, match="is not a folder of this user alone; set HOME"):
        ensure_home()
