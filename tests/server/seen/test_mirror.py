"""What the clients of one server sent, for a second server."""

import json
import subprocess
import sys

import httpx

from tests.conftest import ROOT
from tests.server.seen.conftest import CAT
from tests.server.server import eventually


def lines(folder):
    return [line for file in sorted(folder.iterdir()) for line in file.read_bytes().splitlines()]


def test_what_a_server_recorded_is_sent_to_a_second_one(server, six, recorded, tmp_path):
    before = set(lines(recorded))
    for _ in range(10):
        headers = {"Content-Type": "image/jpeg", "Authorization": "Bearer secret", "Cookie": "secret=1"}
        assert httpx.post(f"{server.url}/classify", content=CAT, headers=headers, timeout=60).json()["label"] == "cat"
    assert eventually(lambda: len(set(lines(recorded)) - before) == 10)
    made = tmp_path / "ours.jsonl"
    made.write_bytes(b"".join(line + b"\n" for line in set(lines(recorded)) - before))
    assert b"secret" not in made.read_bytes()

    def mirrored(url):
        command = [sys.executable, "-m", "ensemble_capacity.mirror", url, tmp_path, "--json", tmp_path / "found"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert "10 images; 0 had failed, 0 failed here" in done.stdout
        found = json.loads((tmp_path / "found").read_text())
        assert found["verdict"] in done.stdout
        assert all(recorded_ms > 0 for recorded_ms, _ in found["ms"].values())
        return found["compared"], found["agreement"]

    assert mirrored(server.url) == (10, 1.0)
    # Its members know other classes.
    assert mirrored(six.url) == (10, 0.0)
