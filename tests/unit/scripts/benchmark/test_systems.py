import importlib.metadata
import subprocess
import sys

import pytest

from scripts.benchmark import peer as peer_file
from scripts.benchmark import systems
from scripts.benchmark.peer import Form, head
from scripts.benchmark.systems import PEERS, System, named
from scripts.errors import ScriptError


@pytest.fixture
def installed(monkeypatch, tmp_path):
    """What pip is asked to install, without installing it."""
    asked = []

    def run(command):
        asked.append(command[command.index("--quiet") + 1 :])
        return subprocess.CompletedProcess(command, installed_rc[0])

    installed_rc = [0]
    asked_of = type("Installed", (), {"asked": asked, "rc": installed_rc})
    monkeypatch.setattr(peer_file, "CACHE", tmp_path)
    monkeypatch.setattr(peer_file.subprocess, "run", run)
    monkeypatch.setattr(peer_file.venv, "create", lambda folder, **_: folder.mkdir(parents=True, exist_ok=True))
    return asked_of


def peer(folder, *lines):
    file = folder / "peer.py"
    file.write_text("\n".join(["# /// script", *(f"# {line}".rstrip() for line in lines), "# ///", "import os"]))
    return file


def test_what_a_peer_wants_of_a_request_is_in_its_head(monkeypatch, tmp_path):
    lines = [
        "dependencies = []",
        "",
        "[tool.benchmark]",
        'path = "/v2"',
        'headers = { A = "b" }',
        "body = '[\"BASE64\"]'",
    ]
    peer(tmp_path, *lines)
    monkeypatch.setattr(systems, "PEERS", tmp_path)
    form = Form("/v2", (("A", "b"),), '["BASE64"]')
    assert named(["peer"]) == [System("peer", None, ("http",), form)]


def test_a_peer_that_declares_nothing_is_sent_the_image():
    assert head(PEERS / "chain.py") == {}
    [fastapi] = named(["fastapi"])
    assert fastapi.form == Form("/classify", (("Content-Type", "image/jpeg"),), None)


def test_every_peer_is_well_declared():
    names = sorted(path.stem for path in PEERS.glob("*.py"))
    assert {"litserve", "mlserver", "bentoml", "triton"} < set(names)
    assert [system.name for system in named(names)] == names


def test_a_peer_has_our_builds_but_for_the_versions_it_asks_for(installed, tmp_path):
    file = peer(tmp_path, 'dependencies = ["openvino", "numpy<2", "mosec"]')
    for _ in range(2):
        peer_file.python_of(file)
    # The second time it is there.
    assert installed.asked == [[f"openvino=={importlib.metadata.version('openvino')}", "numpy<2", "mosec"]]


def test_a_peer_that_can_not_be_installed_is_told(installed, tmp_path):
    installed.rc[0] = 1
    with pytest.raises(ScriptError, match="peer could not be installed"):
        peer_file.python_of(peer(tmp_path, 'dependencies = ["openvino"]'))


def test_a_peer_without_a_head_runs_here():
    assert peer_file.python_of(PEERS / "chain.py") == sys.executable
