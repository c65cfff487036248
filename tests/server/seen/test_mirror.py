"""What the clients of one server sent, for a second server."""

import base64
import json
import subprocess
import sys

import httpx

from tests.conftest import ROOT
from tests.server.seen.conftest import CAT
from tests.server.server import eventually

# The cat with a comment, which no other test sends.
IMAGE = CAT[:2] + b"\xff\xfe\x00\x08mirror" + CAT[2:]


def lines(folder):
    found = (json.loads(line) for file in sorted(folder.iterdir()) for line in file.read_bytes().splitlines())
    return [line for line in found if base64.b64decode(line["image"]) == IMAGE]


def test_what_a_server_recorded_is_sent_to_a_second_one(server, six, recorded, tmp_path):
    before = len(lines(recorded))
    for _ in range(10):
        headers = {"Content-Type": "image/jpeg", "Authorization": "Bearer secret", "Cookie": "secret=1"}
        assert httpx.post(f"{server.url}/classify", content=IMAGE, headers=headers, timeout=60).json()["label"] == "cat"
    assert eventually(lambda: len(lines(recorded)) == before + 10)
    made = tmp_path / "ours.jsonl"
    new = sorted(lines(recorded), key=lambda line: line["at_s"])[before:]
    made.write_text("".join(json.dumps(line) + "\n" for line in new))
    assert "secret" not in made.read_text()

    def mirrored(url):
        command = [sys.executable, "-m", "ensemble_capacity.mirror", url, tmp_path, "--json", tmp_path / "found"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert "10 images; 0 had failed, 0 failed here" in done.stdout
        found = json.loads((tmp_path / "found").read_text())
        assert found["verdict"] in done.stdout
        assert all(recorded_ms > 0 for recorded_ms, _ in found["ms"].values())
        return found["compared"], found["agreement"]

    # Ten times the same image.
    assert mirrored(server.url) == (1, 1.0)
    # Its members know other classes.
    assert mirrored(six.url) == (1, 0.0)
