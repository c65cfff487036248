"""Code beside a configuration that hides a package of this project is named. `ensemble serve`: test_names.py."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import yaml

from tests.server.server import config, eventually, free_ports

ERROR = "ImportError: "


@pytest.fixture
def beside(tmp_path, repository):
    """A folder with a configuration, and a package of the user's that is called as one of this project's."""
    (tmp_path / "deployments").mkdir()
    (tmp_path / "deployments" / "__init__.py").touch()
    content = config(repository, "inline")
    content["http_options"]["port"], content["grpc_options"]["port"] = free_ports(2)
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(content))
    return tmp_path


def test_plain_serve_run_names_what_it_takes_for_ours(beside):
    """For it the working directory comes first on the import path of every process of Ray's."""
    command = [Path(sys.executable).with_name("serve"), "run", "config.yaml"]
    temporary = tempfile.mkdtemp(prefix="es-")
    environment = {**os.environ, "RAY_TMPDIR": temporary}
    logs = Path(temporary) / "ray" / "session_latest" / "logs" / "serve"

    def told():
        return [line for log in logs.glob("controller_*") for line in log.read_text().splitlines() if ERROR in line]

    with subprocess.Popen(command, cwd=beside, env=environment, stdout=subprocess.DEVNULL) as run:
        try:
            assert eventually(told, 120)
            [first, *_] = told()
        finally:
            run.terminate()
            try:
                run.wait(60)
            except subprocess.TimeoutExpired:
                run.kill()
    shutil.rmtree(temporary, ignore_errors=True)
    assert f"{beside / 'deployments' / '__init__.py'} hides the package 'deployments' of ensemble-serving" in first
    assert "use `ensemble serve`" in first


def test_the_doctor_names_it_too(beside):
    ensemble = Path(sys.executable).with_name("ensemble")
    done = subprocess.run([ensemble, "doctor", "config.yaml"], cwd=beside, capture_output=True, text=True)
    [line] = [line for line in done.stdout.splitlines() if "folder: " in line]
    assert line.startswith("look  ")
    assert str(beside / "deployments" / "__init__.py") in line
    assert "use `ensemble serve`" in line
    # On PYTHONPATH it hides the package from every command.
    environment = {**os.environ, "PYTHONPATH": str(beside)}
    done = subprocess.run([ensemble, "doctor"], cwd="/", env=environment, capture_output=True, text=True)
    assert done.stderr.startswith(f"ensemble: {beside / 'deployments' / '__init__.py'} hides a package")
    assert len(done.stderr.splitlines()) == 1
