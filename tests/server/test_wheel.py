"""The wheel, installed outside a checkout, serves its own models by its own configuration."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path

import numpy as np
import onnx
import pytest
import yaml
from packaging.requirements import Requirement

from ensemble_serving.protocol import inference_pb2 as pb
from tests.conftest import ROOT
from tests.local_servers import GrpcServer, HttpServer, Reply
from tests.server.server import Server, post
from tests.server.test_own_models import Drawn, drawn_images

# What is built into wheels, by the name of the distribution.
PLUGINS = {
    f"ensemble_{path.parent.name}": f"packages/plugins/{path.parent.name}"
    for path in ROOT.glob("packages/plugins/*/pyproject.toml")
}
FOLDERS = {
    "ensemble_serving": ".",
    **{f"ensemble_{name}": f"packages/{name}" for name in ("client", "models", "capacity")},
    **PLUGINS,
}


def uv(*command):
    """Run uv, which builds and installs as pip does, in a fraction of its time."""
    return subprocess.run([Path(sys.executable).with_name("uv"), *command, "--quiet"], check=True)


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    """Each distribution's wheel."""
    folder = tmp_path_factory.mktemp("wheels")
    source = folder / "source"
    # What the Dockerfile builds of, which is all that a server needs; elsewhere, because a build writes beside it.
    listed = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    for name in listed:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", "build")
            shutil.copytree(ROOT / name, source / name, ignore=ignored)
        else:
            shutil.copy(ROOT / name, source / name)
    with ThreadPoolExecutor(4) as pool:
        built = [pool.submit(uv, "build", "--wheel", "--out-dir", folder, source / each) for each in FOLDERS.values()]
    assert [each.result().returncode for each in built] == [0] * len(FOLDERS)
    return {wheel.name.partition("-")[0]: wheel for wheel in folder.glob("*.whl")}


def environment(folder, *wheels):
    """The Python and the packages' folder of an environment with nothing but these wheels."""
    uv("venv", "--python", sys.executable, folder)
    python = folder / "bin" / "python"
    uv("pip", "install", "--no-deps", "--python", python, *wheels)
    [packages] = (folder / "lib").glob("python*/site-packages")
    return python, packages


@pytest.fixture(scope="module")
def python(wheels, tmp_path_factory):
    """The Python of an environment with the server's wheel and those it needs; it shares other projects' packages."""
    folder = tmp_path_factory.mktemp("wheel")
    python, packages = environment(folder / "venv", wheels["ensemble_serving"], wheels["ensemble_client"])
    for found in Path(sysconfig.get_path("purelib")).iterdir():
        # No entry point of this project's other distributions, and no finder of their code.
        if not found.name.startswith(("ensemble", "__editable__")) and not (packages / found.name).exists():
            (packages / found.name).symlink_to(found)
    return python


def test_each_package_is_in_one_wheel_and_no_test_is_in_any(wheels):
    assert wheels.keys() == FOLDERS.keys()
    rooms = {name: {line.split("/")[0] for line in zipfile.ZipFile(wheel).namelist()} for name, wheel in wheels.items()}
    own = {name: {room for room in found if "." not in room} for name, found in rooms.items()}
    assert own == {
        "ensemble_serving": {"graph", "deployments", "models", "scripts"},
        "ensemble_client": {"ensemble_serving"},
        "ensemble_models": {"ensemble_models"},
        "ensemble_capacity": {"ensemble_capacity"},
        **{name: {name} for name in PLUGINS},
    }


CLASSIFY = """
import asyncio, importlib.util, sys
from ensemble_serving import Client

async def main():
    for url in sys.argv[1:]:
        async with Client(url) as client:
            print((await client.classify(b"image")).label)

asyncio.run(main())
print([name for name in ("ray", "openvino", "numpy", "graph", "scripts") if importlib.util.find_spec(name)])
"""


def required_by(distribution):
    """The names of what a distribution requires, without its extras."""
    requirements = map(Requirement, distribution.requires or ())
    return {each.name for each in requirements if each.marker is None or each.marker.evaluate({"extra": ""})}


def test_the_client_alone_needs_what_it_declares_and_neither_ray_nor_the_server(wheels, tmp_path):
    python, packages = environment(tmp_path / "venv", wheels["ensemble_client"])
    [described] = packages.glob("ensemble_client-*.dist-info")
    requirements = [Requirement(each) for each in metadata.Distribution.at(described).requires]
    assert len(requirements) <= 6
    # These few, and what they need, come from this environment, file by file.
    needed = [metadata.distribution(requirement.name) for requirement in requirements]
    needed += [metadata.distribution(name) for name in {name for each in needed for name in required_by(each)}]
    for found in needed:
        for file in found.files:
            if ".." not in file.parts:
                (packages / file).parent.mkdir(parents=True, exist_ok=True)
                (packages / file).symlink_to(found.locate_file(file))
    answer = {"label": "cat", "index": 3, "probability": 0.5, "top": [], "model_versions": {}, "trace_id": "0" * 32}
    response = pb.ModelInferResponse(model_name="ensemble")
    response.parameters["classifications"].string_param = json.dumps([answer])
    body, message = json.dumps(answer).encode(), response.SerializeToString()
    with HttpServer(lambda _: Reply(body=body)) as http, GrpcServer(lambda *_: message) as grpc:
        command = [python, "-I", "-c", CLASSIFY, http.url, grpc.url]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "cat\ncat\n[]\n"), done.stderr


def test_it_serves(python, tmp_path):
    script = "import ensemble_serving as e, scripts.shipped as s; print(e.__file__, s.shipped('serve_config.yaml'))"
    done = subprocess.run([python, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    package, config = done.stdout.split()
    assert str(python.parent.parent) in package
    assert str(python.parent.parent) in config
    with open(config) as stream, Server(yaml.safe_load(stream), python=python) as server:
        assert "Page:" not in server.log()
        picture = next(line for line in server.log().splitlines() if "curl" in line).split("@")[1].split()[0]
        assert str(python.parent.parent) in picture
        with open(picture, "rb") as image:
            answer = post(server, image.read())
        assert answer.json()["label"] == "cat"


def test_what_a_package_brings_that_is_not_installed_names_it(python, tmp_path):
    (tmp_path / "my.yaml").write_text(
        "applications:\n- name: ensemble\n  route_prefix: /\n  import_path: graph.app:build\n"
        "  args: {members: [{name: one, kind: tensorflow_serving, url: 'http://127.0.0.1:1'}]}\n"
    )
    command = [python.with_name("ensemble"), "deploy", "my.yaml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    assert "no installed plugin has 'tensorflow_serving'; not installed here: ensemble-capacity, " in done.stderr
    assert "(pip install ensemble_capacity-*.whl ensemble_features-*.whl ensemble_interop-*.whl " in done.stderr


@pytest.fixture(scope="module")
def with_models(python, wheels, tmp_path_factory):
    """The variables of an environment with the wheels of the commands for models, and of the page, beside it."""
    beside, others = tmp_path_factory.mktemp("beside"), (wheels["ensemble_models"], wheels["ensemble_features"])
    uv("pip", "install", "--no-deps", "--python", python, "--target", beside, *others)
    return {**os.environ, "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(beside)}


def test_two_onnx_files_are_three_commands_from_an_answer(python, with_models, tmp_path):
    """The commands of docs/models.md."""
    noise = np.random.default_rng(5)
    for name, layout, order in (("one", "NCHW", "RGB"), ("two", "NHWC", "BGR")):
        onnx.save(Drawn(0, layout, order, "imagenet", noise).model, tmp_path / f"{name}.onnx")
    for name, encoded in drawn_images(1, 20):
        (tmp_path / "images" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "images" / name).write_bytes(encoded)
    text = (ROOT / "docs" / "models.md").read_text()
    init, serve, curl = re.findall(r"^(ensemble init|ensemble serve|curl) ([^#\n]*?) *(?:#.*)?$", text, re.M)[:3]
    done = subprocess.run(" ".join(init), shell=True, cwd=tmp_path, env=with_models, capture_output=True, text=True)
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


@pytest.mark.parametrize("name", ["load", "init"])
def test_a_command_of_another_distribution_says_what_is_not_installed(name, python, tmp_path):
    done = subprocess.run([python.with_name("ensemble"), name], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    assert f"there is no command {name!r}" in done.stderr
    assert "not installed here: ensemble-capacity, ensemble-features, " in done.stderr


def test_beside_the_wheel_of_the_capacity_tools_load_is_a_command(wheels, tmp_path):
    python, packages = environment(tmp_path / "venv", *wheels.values())
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    command = [python.with_name("ensemble"), "load", "http://127.0.0.1:9", "--seconds", "1"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("ensemble load: URL: no connection to 127.0.0.1:9: ")


def test_what_the_image_runs_is_there(python, with_models, tmp_path):
    [command] = [line for line in (ROOT / "Dockerfile").read_text().splitlines() if line.startswith("CMD")]
    program, *_, config = json.loads(command.removeprefix("CMD"))
    config = config.replace("/opt/ensemble", str(python.parent.parent))
    assert yaml.safe_load(Path(config).read_text())["http_options"]["host"] == "0.0.0.0"
    # The program is the command that the wheel installs; the doctor looks at what it would serve.
    command = [python.with_name(program), "doctor", config, "--json"]
    done = subprocess.run(command, cwd=tmp_path, env=with_models, capture_output=True)
    found = {each["what"].partition(":")[0]: each["verdict"] for each in json.loads(done.stdout)}
    assert found["models"] == "ok"
    assert found["one image, label"] == "ok"


def test_type_checkers_find_its_types(python, tmp_path):
    script = "import ensemble_serving as e, graph as g; print(e.__path__[0], g.__path__[0])"
    done = subprocess.run([python, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert all((Path(folder) / "py.typed").is_file() for folder in done.stdout.split())
