"""Every file of `examples/`, as its head says to run it."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests import pictures
from tests.conftest import ROOT
from tests.server.server import Server, post

EXAMPLES = ROOT / "examples"
CAT = ROOT / "tests" / "cat.jpg"
SERVED = {"third_member.yaml", "own_build.yaml"}
# Served by tests/server/remote/test_members.py, which has another server for it: remote_member.yaml. Executed by
# tests/server/test_notebook.py: own_models.ipynb.


@pytest.fixture(scope="module")
def served():
    """The server of an example's configuration, one at a time; from the checkout, as `make serve` does."""
    running = {}

    def serve(name):
        if name not in running:
            for server in running.values():
                server.__exit__(None, None, None)
            running.clear()
            content = yaml.safe_load((EXAMPLES / name).read_text())
            running[name] = Server(content, folder=ROOT).__enter__()
        return running[name]

    yield serve
    for server in running.values():
        server.__exit__(None, None, None)


def run(server, name, *arguments):
    told = {name: server.told(name) for name in ("RAY_AUTH_MODE", "RAY_ADDRESS")}
    command = [sys.executable, EXAMPLES / name, *arguments]
    done = subprocess.run(command, env={**server.environment, **told}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_every_example_is_here():
    tested = {path.name for path in EXAMPLES.iterdir() if path.name in Path(__file__).read_text()}
    assert tested == {path.name for path in EXAMPLES.iterdir() if path.suffix in {".py", ".yaml", ".ipynb"}}


def test_a_third_member(served):
    answer = post(served("third_member.yaml"), CAT.read_bytes(), members="true").json()
    assert answer["label"] == "cat"
    assert answer["model_versions"] == {"resnet": 2, "densenet": 2, "float": 1}
    parts = {name: vote["probability"] for name, vote in answer["members"].items()}
    expected = (parts["resnet"] + parts["densenet"] + 0.5 * parts["float"]) / 2.5
    assert answer["probability"] == pytest.approx(expected, abs=1e-4)


def test_a_handle_client(served, tmp_path):
    (tmp_path / "words.txt").write_text("no image")
    cat, words = run(served("third_member.yaml"), "handle_client.py", CAT, tmp_path / "words.txt")
    assert "cat.jpg: cat" in cat
    assert "float: cat" in cat
    assert "words.txt: invalid_image" in words


def test_an_asynchronous_client(served, tmp_path):
    for number in range(40):
        shutil.copy(CAT, tmp_path / f"{number:02}.jpg")
    (tmp_path / "words.txt").write_text("no image")
    lines = run(served("third_member.yaml"), "async_client.py", served("third_member.yaml").url, tmp_path)
    [words] = [line for line in lines if line.startswith("words.txt")]
    assert sorted(line.split()[1] for line in lines if line != words) == ["cat"] * 40
    assert "not an image" in words


@pytest.mark.parametrize("call", [["handle_client.py"], ["async_client.py"], ["async_client.py", "http://a", "none"]])
def test_a_wrong_call_shows_a_right_one(call):
    command = [sys.executable, EXAMPLES / call[0], *call[1:]]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, f"python examples/{call[0]}" in done.stderr) == (1, True)
    assert "Traceback" not in done.stderr


def test_a_build_of_ones_own(served):
    """`own_build.py`, by `own_build.yaml`: what the members don't agree on is an error of its own."""
    server = served("own_build.yaml")
    answer = post(server, CAT.read_bytes(), members="true")
    assert {vote["label"] for vote in answer.json()["members"].values()} == {"cat"}
    answers = [post(server, pictures.jpeg(32, 32, seed), members="true") for seed in range(40)]
    statuses = {answer.status_code for answer in answers}
    assert statuses == {200, 409}
    for answer in answers:
        if answer.status_code == 200:
            assert len({vote["label"] for vote in answer.json()["members"].values()}) == 1
        else:
            assert answer.json()["error"]["code"] == "undecided"
