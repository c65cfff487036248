import os
import subprocess
import sys

import pytest

from scripts import cli
from tests.unit.scripts.test_help import COMMANDS


def test_every_command_is_there(capsys):
    cli.main(["--help"])
    told = capsys.readouterr().out
    assert {name.replace("_", "-") for name in COMMANDS} - {"cli"} == set(cli.commands())
    for name, file in cli.commands().items():
        assert f"  {name} " in told
        assert cli.summary(file)


def test_a_command_is_called_by_its_name(capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(["tune-cascade", "--help"])
    assert end.value.code == 0
    assert capsys.readouterr().out.startswith("usage: ensemble tune-cascade ")


def test_an_unknown_command_is_told_what_there_is():
    with pytest.raises(SystemExit, match=r"no command 'serv'(.|\n)*doctor"):
        cli.main(["serv"])


def test_a_shell_completes_commands_and_options(tmp_path):
    program = tmp_path / "ensemble"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m scripts.cli "$@"\n')
    program.chmod(0o755)
    script = """eval "$(ensemble completion)"
    COMP_WORDS=(ensemble tr) COMP_CWORD=1; _ensemble; echo "${COMPREPLY[*]}"
    COMP_WORDS=(ensemble trace --sl) COMP_CWORD=2; _ensemble; echo "${COMPREPLY[*]}"
    """
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.splitlines() == ["trace train", "--slowest"]
