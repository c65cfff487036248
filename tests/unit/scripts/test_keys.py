import stat
import subprocess
import sys

import pytest

from deployments.contract.errors import ConfigurationError
from deployments.ingress.keys import KeyFile, digest, read
from scripts import keys
from scripts.errors import ScriptError


def test_a_key_is_made_and_only_its_digest_kept(tmp_path):
    file = tmp_path / "keys"
    first, second = keys.add(file, "one", None), keys.add(file, "two", 2.5)
    assert first != second
    assert len(first) > 40
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert first not in file.read_text()
    assert [(key.name, key.digest, key.rate) for key in read(file)] == [
        ("one", digest(first), None),
        ("two", digest(second), 2.5),
    ]
    assert KeyFile(file).find(second).name == "two"


def test_a_file_of_ones_own_keeps_its_words_and_its_mode(tmp_path):
    file = tmp_path / "keys"
    file.write_text(f"# ours\nold {'0' * 64}  # no newline")
    file.chmod(0o640)
    keys.add(file, "new", None)
    assert file.read_text().startswith(f"# ours\nold {'0' * 64}  # no newline\nnew ")
    keys.remove(file, "old")
    assert [key.name for key in read(file)] == ["new"]
    assert file.read_text().startswith("# ours\nnew ")
    assert stat.S_IMODE(file.stat().st_mode) == 0o640


def test_a_key_is_replaced_and_the_previous_one_ends_later(tmp_path):
    file = tmp_path / "keys"
    other, first = keys.add(file, "other", None), keys.add(file, "one", 5.0)
    second = keys.rotate(file, "one", 1)
    found = KeyFile(file)
    assert [found.find(key).name for key in (other, first, second)] == ["other", "one", "one"]
    assert {key.rate for key in read(file) if key.name == "one"} == {5.0}
    third = keys.rotate(file, "one", 0)
    found = KeyFile(file)
    assert [found.find(key) is not None for key in (other, first, second, third)] == [True, False, False, True]
    assert [" until " in keys.shown(key) for key in read(file)] == [False, True, False]
    with pytest.raises(ScriptError, match="has no key of the name 'two'"):
        keys.rotate(file, "two", 1)
    keys.remove(file, "one")
    assert [key.name for key in read(file)] == ["other"]


def test_what_cannot_be_is_told_and_changes_nothing(tmp_path):
    file = tmp_path / "keys"
    keys.add(file, "one", None)
    before = file.read_text()
    for hours in (1e9, 1e300, float("inf"), float("nan"), -1):
        with pytest.raises(ScriptError, match=r"beyond every date|no time from now on"):
            keys.rotate(file, "one", hours)
    with pytest.raises(ScriptError, match="rotate or remove it, or choose another name"):
        keys.add(file, "one", None)
    with pytest.raises(ConfigurationError, match="a line has a name of at most 64"):
        keys.add(file, "o/ne", None)
    with pytest.raises(ConfigurationError, match="above 0"):
        keys.add(file, "two", -1.0)
    with pytest.raises(ScriptError, match=r"it has \['one'\]"):
        keys.remove(file, "two")
    assert file.read_text() == before
    assert [path.name for path in tmp_path.iterdir()] == ["keys"]


def test_a_folder_that_is_not_there_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["keys", "add", "mobile", "--file", str(tmp_path / "none" / "keys")])
    with pytest.raises(SystemExit):
        keys.main()
    assert f"there is no folder {tmp_path / 'none'} to write keys to" in capsys.readouterr().err


def test_the_command_shows_a_key_once(tmp_path):
    def run(*arguments):
        command = [sys.executable, "-m", "scripts.keys", *arguments, "--file", tmp_path / "keys"]
        return subprocess.run(command, capture_output=True, text=True)

    key = run("add", "mobile", "--rate", "5").stdout.strip()
    assert KeyFile(tmp_path / "keys").find(key).name == "mobile"
    listed = run("list").stdout
    assert "mobile" in listed
    assert "5/s" in listed
    assert key not in listed
    again = run("add", "mobile")
    assert again.returncode == 1
    assert again.stderr.startswith("error: ")
    assert run("remove", "mobile").returncode == 0
    assert read(tmp_path / "keys") == ()
