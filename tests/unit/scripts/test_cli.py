import importlib
import os
import re
import subprocess
import sys
from importlib import metadata

import pytest

from deployments import entry_points
from scripts import cli, commands, shipped
from tests.conftest import ROOT

# Modules that are run, but by no name of a command.
PROGRAMS = {"scripts.cli", "scripts.serve.cluster", "lab.second_node", "lab.training.ranges"}
# Where each distribution's packages are.
SOURCES = {
    "scripts": ROOT,
    "lab": ROOT,
    "ensemble_models": ROOT / "packages" / "models",
    "ensemble_capacity": ROOT / "packages" / "capacity",
}


def runnable() -> set[str]:
    found = set()
    for package, source in SOURCES.items():
        files = [file for file in (source / package).rglob("*.py") if '__name__ == "__main__"' in file.read_text()]
        found |= {".".join(file.relative_to(source).with_suffix("").parts) for file in files}
    return {name for name in found if not name.startswith("lab.benchmark.peers.")}


def test_every_command_is_in_a_table(capsys):
    installed = cli.groups()
    assert {command.module for command in cli.by_name(installed).values()} == runnable() - PROGRAMS
    cli.main(["--help"])
    out = capsys.readouterr().out
    for title, group in installed.items():
        assert f"\n{title}:\n" in out
        for name, command in group.items():
            assert f"  {name} " in out
            assert command.help in out
    assert "not installed" not in out


def test_help_imports_no_command():
    script = "import sys; from scripts import cli; cli.main(['--help']); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = set(done.stderr.split())
    assert {"scripts.commands", "ensemble_models.commands", "ensemble_capacity.commands", "lab.commands"} <= loaded
    assert not loaded & {"ray", "openvino", "numpy", *(each.module for each in cli.by_name(cli.groups()).values())}


def test_the_version_is_that_of_the_package_and_of_the_changelog(capsys):
    version = metadata.version("ensemble-serving")
    cli.main(["--version"])
    assert capsys.readouterr().out == f"ensemble-serving {version}\n"
    assert re.search(rf"^## {re.escape(version)}\b", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)


def test_other_code_of_our_names_is_found(tmp_path, monkeypatch):
    assert shipped.hidden() == {}
    (tmp_path / "graph.py").touch()
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "__init__.py").touch()
    places = {"graph": str(tmp_path / "graph.py"), "scripts": str(tmp_path / "scripts" / "__init__.py")}
    assert shipped.hidden([str(tmp_path)]) == places
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        SystemExit, match=r"^ensemble: .*graph\.py hides a package of ensemble-serving; take its folder"
    ):
        cli.main(["keys"])


def test_a_command_is_called_by_its_name(capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(["keys", "--help"])
    assert end.value.code == 0
    assert capsys.readouterr().out.startswith("usage: ensemble keys ")


@pytest.mark.parametrize("place", ["scripts.cli.hidden", "scripts.cli.importlib.import_module", "scripts.keys.main"])
def test_ctrl_c_ends_a_command_without_a_traceback_at_any_moment(place, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    importlib.import_module("scripts.keys")
    monkeypatch.setattr(place, interrupted)
    with pytest.raises(SystemExit) as end:
        cli.main(["keys"])
    assert end.value.code == 130


def test_an_unknown_command_is_told_what_there_is():
    with pytest.raises(SystemExit, match=r"no command 'serv'(.|\n)*keys"):
        cli.main(["serv"])


def only(monkeypatch, *points):
    """Let these entry points be all that is installed."""
    made = [metadata.EntryPoint(name, value, cli.ENTRY_POINTS) for name, value in points]
    monkeypatch.setattr(cli.metadata, "entry_points", lambda group: metadata.EntryPoints(made))


OWN = ("ensemble-serving", "scripts.commands:COMMANDS")


@pytest.mark.parametrize("name", ["init", "check", "load"])
def test_a_command_that_is_not_installed_says_what_may_bring_it(name, monkeypatch):
    only(monkeypatch, OWN)
    monkeypatch.setattr(entry_points, "_is_installed", lambda name: name != "ensemble-models")
    with pytest.raises(SystemExit) as end:
        cli.main([name, "--help"])
    told = str(end.value)
    assert told.startswith(f"ensemble: there is no command {name!r}\n")
    assert told.endswith(f"; not installed here: ensemble-models (pip install -e {ROOT}/packages/models)")


def test_other_distributions_add_commands_and_neither_break_nor_replace_ours(monkeypatch, tmp_path, capsys):
    mine = {"Mine": {"hello": ("mine.hello", "Says hello."), "keys": ("mine.hello", "Makes no keys.")}}
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "commands.py").write_text(f"COMMANDS = {mine}")
    (tmp_path / "mine" / "hello.py").write_text("def main(): print('hello')")
    monkeypatch.syspath_prepend(tmp_path)
    only(monkeypatch, ("a-broken-one", "no_such:COMMANDS"), ("mine", "mine.commands:COMMANDS"), OWN)
    cli.main(["hello"])
    told = capsys.readouterr()
    assert told.out == "hello\n"
    assert "the commands of a-broken-one are left out: ModuleNotFoundError" in told.err
    assert "another command 'keys', of mine, is left out" in told.err
    assert cli.by_name(cli.groups())["keys"].module == "scripts.keys"


def test_another_module_that_is_missing_keeps_its_traceback(monkeypatch):
    monkeypatch.setitem(commands.COMMANDS["Serve"], "keys", ("scripts.no_such", ""))
    with pytest.raises(ModuleNotFoundError, match="no_such"):
        cli.main(["keys"])


def test_a_shell_completes_commands_and_options(tmp_path):
    program = tmp_path / "ensemble"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m scripts.cli "$@"\n')
    program.chmod(0o755)
    script = """eval "$(ensemble completion)"
    COMP_WORDS=(ensemble tr) COMP_CWORD=1; _ensemble; echo "${COMPREPLY[*]}"
    COMP_WORDS=(ensemble trace --sl) COMP_CWORD=2; _ensemble; echo "${COMPREPLY[*]}"
    COMP_WORDS=(ensemble load --p) COMP_CWORD=2; _ensemble; echo "${COMPREPLY[*]}"
    """
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.splitlines() == ["trace train", "--slowest", "--percentile --protocol"]
