"""The units for systemd, by systemd's own check and by the commands that they run."""

import shutil
import subprocess

import pytest

from scripts.cli import by_name, groups
from tests.conftest import ROOT

UNITS = sorted((ROOT / "configs" / "systemd").glob("*.service"))
PROGRAM = "/opt/ensemble/bin/ensemble"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd; .ci/run installs it")
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_finds_nothing_wrong(unit, tmp_path):
    text = unit.read_text()
    assert f"ExecStart={PROGRAM} " in text
    # The program is not where a user installs it.
    (tmp_path / unit.name).write_text(text.replace(PROGRAM, "/bin/true"))
    done = subprocess.run(["systemd-analyze", "verify", tmp_path / unit.name], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_units_run_commands_that_there_are():
    lines = [line for unit in UNITS for line in unit.read_text().splitlines() if line.startswith("ExecStart=")]
    assert [line.split()[1] for line in lines] == ["join", "serve"]
    assert {"join", "serve"} <= set(by_name(groups()))
