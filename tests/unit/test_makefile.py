"""What `make test` and `make test-rest` run between them, and what `.ci/run` repeats of it."""

import json
import re
import subprocess
import sys

from tests.conftest import ROOT

DIES = """
import os
import pytest

@pytest.mark.parametrize("number", range(5))
def test_dies(number):
    if number == 1:
        os._exit(1)
"""


def test_each_test_file_is_in_the_folders_of_one_target():
    runs = re.findall(r"^\t\$\(PYTEST\) (.*)$", (ROOT / "Makefile").read_text(), re.M)
    folders = [ROOT / folder for run in runs for folder in run.split()]
    files = [file for folder in ("tests", "packages", "lab") for file in (ROOT / folder).rglob("test_*.py")]
    assert (len(runs), len(files) > 200) == (2, True)
    assert [file for file in files if sum(file.is_relative_to(folder) for folder in folders) != 1] == []


def test_what_a_dead_process_left_untested_is_repeated_with_what_failed(tmp_path):
    (tmp_path / "conftest.py").write_text("from tests.conftest import *")
    (tmp_path / "test_one.py").write_text(DIES)
    command = [sys.executable, "-m", "pytest", "-n", "1", "--dist", "loadscope", "--max-worker-restart", "0"]
    done = subprocess.run([*command, "--rootdir", tmp_path, tmp_path], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode != 0, done.stdout
    failed = json.loads((tmp_path / ".pytest_cache" / "v" / "cache" / "lastfailed").read_text())
    assert set(failed) == {f"test_one.py::test_dies[{number}]" for number in range(1, 5)}, done.stdout
