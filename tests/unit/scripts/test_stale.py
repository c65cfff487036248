"""Packages of other versions in a folder of PYTHONPATH, which come before the installed ones."""

import subprocess
import sys

import pytest

from scripts.shipped import stale


def install(folder, name, version):
    place = folder / f"{name}-{version}.dist-info"
    place.mkdir()
    (place / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


@pytest.mark.parametrize(
    ("name", "version", "is_stale"),
    [("protobuf", "3.20.3", True), ("grpcio", "1.40.0", True), ("grpcio", "1.999", False), ("torch", "0.1", False)],
)
def test_versions_that_can_not_be_used_are_found(tmp_path, monkeypatch, name, version, is_stale):
    install(tmp_path, name, version)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert bool(stale()) == is_stale
    monkeypatch.delenv("PYTHONPATH")
    assert stale() == []


@pytest.mark.parametrize("command", ["serve", "doctor", "deploy"])
def test_every_command_names_the_folder(tmp_path, command):
    install(tmp_path, "protobuf", "3.20.3")
    done = subprocess.run(
        [sys.executable, "-m", "scripts.cli", command, "nothing.yaml"],
        env={"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert done.stderr.startswith(f"ensemble: PYTHONPATH has protobuf 3.20.3 in {tmp_path}, and not ")
    assert len(done.stderr.splitlines()) == 1
