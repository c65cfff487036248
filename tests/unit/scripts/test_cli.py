import os
import re
import subprocess
import sys
from importlib import metadata
from types import SimpleNamespace

import pytest

from scripts import cli, shipped
from tests.conftest import ROOT

# Modules that are run, but by no name of a command.
PROGRAMS = {"scripts.cli"}


def runnable() -> set[str]:
    files = [file for file in (ROOT / "scripts").rglob("*.py") if '__name__ == "__main__"' in file.read_text("utf-8")]
    names = {".".join(file.relative_to(ROOT).with_suffix("").parts) for file in files}
    return {name for name in names if not name.startswith("scripts.lab.benchmark.peers.")}


def test_every_command_is_in_the_table(capsys):
    assert {command.module for command in cli.COMMANDS.values()} == runnable() - PROGRAMS
    cli.main(["--help"])
    out = capsys.readouterr().out
    for name, command in cli.COMMANDS.items():
        assert f"  {name} " in out
        assert command.help in out
    for group in cli.GROUPS:
        assert f"\n{group}:\n" in out


def test_the_version_is_that_of_the_package_and_of_the_changelog(capsys):
    version = metadata.version("ensemble-serving")
    cli.main(["--version"])
    assert capsys.readouterr().out == f"ensemble-serving {version}\n"
    assert re.search(rf"^## {re.escape(version)}\b", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)


def test_other_code_of_our_names_is_found(tmp_path, monkeypatch):
    assert shipped.hidden() == {}
    (tmp_path / "graph.py").touch()
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "__init__.py").touch()
    places = {"graph": str(tmp_path / "graph.py"), "models": str(tmp_path / "models" / "__init__.py")}
    assert shipped.hidden([str(tmp_path)]) == places
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        SystemExit, match=r"^ensemble: .*graph\.py hides a package of ensemble-serving; take its folder"
    ):
        cli.main(["doctor"])


def test_a_command_is_called_by_its_name(capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(["tune-cascade", "--help"])
    assert end.value.code == 0
    assert capsys.readouterr().out.startswith("usage: ensemble tune-cascade ")


def test_an_old_name_of_a_command_says_the_new_one(capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(["overload", "--help"])
    told = capsys.readouterr()
    assert end.value.code == 0
    assert told.out.startswith("usage: ensemble load ")
    assert told.err == "ensemble overload is now ensemble load: see its --help\n"


def test_ctrl_c_ends_a_command_without_a_traceback(monkeypatch):
    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr("scripts.keys.main", interrupted)
    with pytest.raises(SystemExit) as end:
        cli.main(["keys"])
    assert end.value.code == 130


def test_an_unknown_command_is_told_what_there_is():
    with pytest.raises(SystemExit, match=r"no command 'serv'(.|\n)*doctor"):
        cli.main(["serv"])


@pytest.mark.parametrize(("name", "room"), [("train", "scripts.training"), ("limit", "scripts.lab")])
def test_what_the_wheel_leaves_out_is_named_in_one_line(name, room, monkeypatch):
    for module in [each for each in sys.modules if each.startswith(room)]:
        monkeypatch.delitem(sys.modules, module)

    def find_spec(module, *_):
        if module == room:
            raise ModuleNotFoundError(name=module)

    monkeypatch.setattr(sys, "meta_path", [SimpleNamespace(find_spec=find_spec), *sys.meta_path])
    with pytest.raises(SystemExit, match=f"^ensemble {name}: this installation has no {room}; run it in a checkout"):
        cli.main([name, "--help"])


def test_another_module_that_is_missing_keeps_its_traceback(monkeypatch):
    monkeypatch.setitem(cli.COMMANDS, "doctor", cli.Command("scripts.no_such", ""))
    with pytest.raises(ModuleNotFoundError, match="no_such"):
        cli.main(["doctor"])


def test_a_shell_completes_commands_and_options(tmp_path):
    program = tmp_path / "ensemble"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m scripts.cli "$@"\n')
    program.chmod(0o755)
    script = """eval "$(ensemble completion)"
    COMP_WORDS=(ensemble tr) COMP_CWORD=1; _ensemble; echo "${COMPREPLY[*]}"
    COMP_WORDS=(ensemble trace --sl) COMP_CWORD=2; _ensemble; echo "${COMPREPLY[*]}"
    COMP_WORDS=(ensemble tune --p) COMP_CWORD=2; _ensemble; echo "${COMPREPLY[*]}"
    """
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.splitlines() == ["trace train", "--slowest", "--p99-ms --plot --profile"]
