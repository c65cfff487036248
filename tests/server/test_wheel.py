"""The wheel, installed outside a checkout, serves its own models by its own configuration."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import numpy as np
import onnx
import pytest
import yaml

from tests.conftest import ROOT
from tests.server.server import Server, post
from tests.server.test_own_models import Drawn, drawn_images


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """The Python of an environment with nothing but the wheel; what the wheel depends on is found in this one's."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    # What the Dockerfile builds of, which is all that a wheel needs; elsewhere, because a build writes beside it.
    listed = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    for name in listed:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, source / name)
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
    script = "import ensemble_serving as e, scripts.shipped as s; print(e.__file__, s.shipped('serve_config.yaml'))"
    done = subprocess.run([python, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    package, config = done.stdout.split()
    assert str(python.parent.parent) in package
    assert str(python.parent.parent) in config
    with open(config) as stream, Server(yaml.safe_load(stream), python=python) as server:
        picture = next(line for line in server.log().splitlines() if "curl" in line).split("@")[1].split()[0]
        assert str(python.parent.parent) in picture
        with open(picture, "rb") as image:
            answer = post(server, image.read())
        assert answer.json()["label"] == "cat"


def test_two_onnx_files_are_three_commands_from_an_answer(python, tmp_path):
    """Those of docs/own-models.md."""
    noise = np.random.default_rng(5)
    for name, layout, order in (("one", "NCHW", "RGB"), ("two", "NHWC", "BGR")):
        onnx.save(Drawn(0, layout, order, "imagenet", noise).model, tmp_path / f"{name}.onnx")
    for name, encoded in drawn_images(1, 20):
        (tmp_path / "images" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "images" / name).write_bytes(encoded)
    text = (ROOT / "docs" / "own-models.md").read_text()
    init, serve, curl = re.findall(r"^(ensemble init|ensemble serve|curl) ([^#\n]*?) *(?:#.*)?$", text, re.M)[:3]
    path = f"{python.parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        " ".join(init), shell=True, cwd=tmp_path, env={**os.environ, "PATH": path}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert serve == ("ensemble serve", "my.yaml")
    content = yaml.safe_load((tmp_path / "my.yaml").read_text())
    # It is served from a file elsewhere, on ports that nobody else has.
    content["applications"][0]["args"]["model_repository"] = str(tmp_path / "models")
    with Server(content, python=python) as server:
        sent = " ".join(curl).replace("image/jpeg", "image/png").replace("cat.jpg", "images/poppy/0.png")
        sent = sent.replace("127.0.0.1:8000", f"127.0.0.1:{server.http_port}")
        answer = subprocess.run(sent, shell=True, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert json.loads(answer.stdout)["label"] == "poppy"
    assert json.loads(answer.stdout)["model_versions"] == {"one": 1, "two": 1}


def test_what_trains_and_what_measures_stays_in_a_checkout(python, tmp_path):
    folder = subprocess.run(
        [python, "-c", "import scripts; print(scripts.__path__[0])"], cwd=tmp_path, capture_output=True, text=True
    )
    rooms = {path.name for path in Path(folder.stdout.strip()).iterdir()}
    assert {"serve", "trace"} <= rooms
    assert not rooms & {"training", "lab", "load", "plan", "tune"}
    for name, distribution in (("train", "ensemble-lab"), ("load", "ensemble-capacity")):
        done = subprocess.run([python.with_name("ensemble"), name], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 1
        assert done.stderr.startswith(f"ensemble {name} is part of {distribution}, which is not installed here: ")


def test_what_the_image_runs_is_there(python, tmp_path):
    [command] = [line for line in (ROOT / "Dockerfile").read_text().splitlines() if line.startswith("CMD")]
    program, *_, config = json.loads(command.removeprefix("CMD"))
    config = config.replace("/opt/ensemble", str(python.parent.parent))
    assert yaml.safe_load(Path(config).read_text())["http_options"]["host"] == "0.0.0.0"
    # The program is the command that the wheel installs; the doctor looks at what it would serve.
    done = subprocess.run([python.with_name(program), "doctor", config, "--json"], cwd=tmp_path, capture_output=True)
    found = {each["what"].partition(":")[0]: each["verdict"] for each in json.loads(done.stdout)}
    assert found["models"] == "ok"
    assert found["one image, label"] == "ok"


def test_type_checkers_find_its_types(python, tmp_path):
    script = "import ensemble_serving as e, graph as g; print(e.__path__[0], g.__path__[0])"
    done = subprocess.run([python, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert all((Path(folder) / "py.typed").is_file() for folder in done.stdout.split())
