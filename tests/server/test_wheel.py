"""The wheel, installed outside a checkout, serves its own models by its own configuration."""

import shutil
import subprocess
import sys
import sysconfig
import venv

import pytest
import yaml

from tests.conftest import ROOT
from tests.server.server import Server, post


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """The Python of an environment with nothing but the wheel; what the wheel depends on is found in this one's."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    # Elsewhere, because a build writes beside what it builds.
    shutil.copytree(ROOT, source, ignore=shutil.ignore_patterns(".*", "build", "*.egg-info", "__pycache__"))
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, source]
    subprocess.run(command, check=True)
    [wheel] = folder.glob("*.whl")
    venv.create(folder / "venv", with_pip=True)
    python = folder / "venv" / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-deps", wheel], check=True)
    [packages] = (folder / "venv" / "lib").glob("python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    return python


def test_it_serves(python, tmp_path):
    script = "import graph, scripts.shipped as s; print(graph.__file__); print(s.shipped('serve_config.yaml'))"
    done = subprocess.run([python, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    package, config = done.stdout.splitlines()
    assert str(python.parent.parent) in package
    assert str(python.parent.parent) in config
    with open(config) as stream, Server(yaml.safe_load(stream), python=python) as server:
        picture = next(line for line in server.log().splitlines() if "curl" in line).split("@")[1].split()[0]
        assert str(python.parent.parent) in picture
        with open(picture, "rb") as image:
            answer = post(server, image.read())
        assert answer.json()["label"] == "cat"
