"""A folder of photographs, by the command."""

import csv
import subprocess
import sys

from tests.conftest import ROOT
from tests.server.seen.conftest import CAT


def test_a_folder_is_classified_and_gone_on_with(server, tmp_path):
    folder, output = tmp_path / "photographs", tmp_path / "answers.csv"
    folder.mkdir()
    for number in range(200):
        (folder / f"{number}.jpg").write_bytes(CAT)
    (folder / "words.txt").write_text("no image")

    def classify():
        command = [sys.executable, "-m", "scripts.cli", "classify", str(folder), "--workers", "16"]
        command += ["--url", server.url, "--output", str(output)]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)

    first = classify()
    assert first.stdout.startswith("200 images classified, 1 failed\n"), first.stderr
    assert "invalid_image: 1, such as" in first.stdout
    assert first.returncode == 1
    (folder / "one more.jpg").write_bytes(CAT)
    second = classify()
    assert second.stdout == "1 images classified, 0 failed; 201 were finished before\n"
    assert second.returncode == 0
    with output.open(newline="") as stream:
        labels = [row["label"] for row in csv.DictReader(stream)]
    assert sorted(labels) == ["", *["cat"] * 201]
