"""The tutorial is followed from its first block to its last."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from tests.conftest import ROOT
from tests.server.server import Server

pytest.importorskip("torch", reason="the tutorial trains by PyTorch: make train")
BLOCK = re.compile(r'^```(\w+)(?: title="([\w.]+)")?\n(.*?)^```$', re.DOTALL | re.MULTILINE)
SERVE, URL = "ensemble serve my.yaml\n", "127.0.0.1:8000"


class Block(NamedTuple):
    language: str
    title: str
    text: str


def blocks():
    return [Block(*found) for found in BLOCK.findall((ROOT / "docs" / "tutorial.md").read_text())]


def run(script, folder, **environment):
    """What a block prints in the folder, with the commands of this environment."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    # Threads that spin while others work take longer than one.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **environment, "PATH": path}
    command = ["bash", "-euo", "pipefail", "-c", script]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, (script, done.stdout, done.stderr)
    return done.stdout


PORTS = "http_options: {{port: {http}}}\ngrpc_options: {{port: {grpc}}}\n"


def follow(steps, folder, server=None):
    """Write the files and run the commands; what the last command of each block printed."""
    printed = []
    for step in steps:
        if step.title:
            # A reader's server has the ports of the file, which `ensemble deploy` compares.
            ports = "" if server is None else PORTS.format(http=server.http_port, grpc=server.grpc_port)
            (folder / step.title).write_text(f"{step.text}{ports if step.title.endswith('.yaml') else ''}")
        elif step.language == "bash":
            known = {} if server is None else server.environment | told(server)
            text = step.text if server is None else step.text.replace(URL, f"127.0.0.1:{server.http_port}")
            printed.append(run(text, folder, **known))
    return printed


def told(server):
    """The variables by which a command finds a server on other ports."""
    file = Path(re.search(r"source (\S+)", server.log())[1])
    return dict(word.split("=", 1) for word in shlex.split(file.read_text()) if "=" in word)


def test_the_tutorial_leads_to_a_served_cascade(tmp_path):
    steps = blocks()
    serves = next(number for number, step in enumerate(steps) if step.text == SERVE)
    follow(steps[:serves], tmp_path)
    assert sorted(path.name for path in (tmp_path / "models" / "small").iterdir()) == ["1", "2"]
    content = yaml.safe_load((tmp_path / "my.yaml").read_text())
    content["applications"][0]["args"]["model_repository"] = str(tmp_path / "models")
    with Server(content, folder=tmp_path) as server:
        classified, tuned, deployed, tried, watched = follow(steps[serves + 1 :], tmp_path, server)
    answer = json.loads(classified)
    assert answer["model_versions"] == {"small": 2, "large": 2}
    assert set(answer["members"]) == {"small", "large"}
    exits = r"^cascade: \{order: \[\w+, \w+\], exit_at: \[[\d.]+\], versions: \{small: 2, large: 2\}\}$"
    assert re.search(exits, tuned, re.M)
    assert "small" in json.loads(deployed.splitlines()[-1])["asked"]
    answered = {version: int(count) for count, version in re.findall(r"(\d+) \"small\":(\d)", tried)}
    assert sum(answered.values()) == 200
    assert 0 < answered["2"] < answered["1"]
    assert json.loads(watched)["members"]
