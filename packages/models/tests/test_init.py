import re
import sys

import cv2
import numpy as np
import openvino as ov
import pytest
import yaml
from openvino import opset13

from deployments.cpus import available_cpus
from deployments.repository.errors import ModelError
from ensemble_models import init
from ensemble_models.doctor.__main__ import examine
from packages.models.tests.tiny import constant
from scripts.configuration import check, read
from scripts.errors import ScriptError
from scripts.serve import __main__ as command
from tests.conftest import ROOT
from tests.networks import brightness, store


def run(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["init", *map(str, arguments)])
    init.main()


def test_it_writes_what_can_be_served(tmp_path, monkeypatch, capsys):
    store(tmp_path / "models", "one", brightness())
    store(tmp_path / "models", "two", brightness())
    monkeypatch.chdir(tmp_path)
    run(monkeypatch, "my.yaml", "--members", "one", "two")
    assert "wrote my.yaml, with 8 classes\nserve it: ensemble serve my.yaml" in capsys.readouterr().out
    [application] = yaml.safe_load((tmp_path / "my.yaml").read_text())["applications"]
    assert application["args"]["model_repository"] == "models"
    assert "- {name: one, version: 1, placement: inline}" in (tmp_path / "my.yaml").read_text()
    written, _ = check(read(tmp_path / "my.yaml")["applications"][0])
    assert [member.name for member in written.members] == ["one", "two"]
    assert (written.ensemble.quorum, written.ensemble.patience_ms) == (1, 3000)
    with pytest.raises(SystemExit, match=r"error: my\.yaml is there already"):
        run(monkeypatch, "my.yaml", "--members", "one")


def test_doctor_has_no_complaint_about_what_it_writes(tmp_path, monkeypatch):
    # More members than this machine has cores: doctor complained of their threads, which nobody had chosen.
    names = [f"member{number}" for number in range(available_cpus() + 1)]
    for name in names:
        store(tmp_path / "models", name, brightness())
    monkeypatch.chdir(tmp_path)
    run(monkeypatch, "my.yaml", "--members", *names)
    told = [found for found in examine(read(tmp_path / "my.yaml")) if found.verdict != "ok"]
    # What is not about the file is about this machine.
    machines = ("versions", "instructions", "memory", "token", "port", "folder", "cores")
    assert [found for found in told if not found.what.startswith(machines)] == []


def test_the_models_may_be_elsewhere(tmp_path, monkeypatch):
    store(tmp_path / "elsewhere", "one", brightness())
    (tmp_path / "here").mkdir()
    monkeypatch.setenv("ENSEMBLE_MODELS", str(tmp_path / "elsewhere"))
    run(monkeypatch, tmp_path / "here" / "my.yaml", "--members", "one")
    assert read(tmp_path / "here" / "my.yaml")["applications"][0]["args"]["model_repository"] == str(
        tmp_path / "elsewhere"
    )


@pytest.mark.parametrize("folder", ["models: mine", "models #1", "[models", "1", "mod\u00e8les \U0001f408"])
def test_a_folder_may_have_any_name(tmp_path, monkeypatch, folder):
    store(tmp_path / folder, "one", brightness())
    monkeypatch.chdir(tmp_path)
    run(monkeypatch, "my.yaml", "--members", "one", "--repository", folder)
    assert yaml.safe_load((tmp_path / "my.yaml").read_text())["applications"][0]["args"]["model_repository"] == folder


def test_files_are_prepared_or_refused(tmp_path, monkeypatch, capsys):
    ov.save_model(constant([0.2, 0.3, 0.5]), tmp_path / "net.xml")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        SystemExit,
        match=r"error: net\.xml: its exporter .*--channel-order.*flags of `ensemble prepare net.xml --name net`",
    ):
        run(monkeypatch, "my.yaml", "--members", "net.xml")
    (tmp_path / "no.onnx").touch()
    with pytest.raises(SystemExit, match=r"error: no\.onnx is empty[^;]*$"):
        run(monkeypatch, "my.yaml", "--members", "no.onnx")
    with pytest.raises(SystemExit, match=r"error: members: 'gone': there is no folder .*models"):
        run(monkeypatch, "my.yaml", "--members", "gone")
    assert not (tmp_path / "my.yaml").exists()


def test_what_will_not_do_is_told_before_anything_is_prepared(tmp_path, monkeypatch):
    monkeypatch.setattr(init, "prepared", None)
    monkeypatch.chdir(tmp_path)
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "net.onnx").touch()
    with pytest.raises(SystemExit, match="error: two members would have the name 'net'"):
        run(monkeypatch, "my.yaml", "--members", "one/net.onnx", "two/net.onnx")
    with pytest.raises(SystemExit, match="error: one/none is neither a file nor a folder with a model"):
        run(monkeypatch, "my.yaml", "--members", "one/none")
    (tmp_path / "my.yaml").touch()
    with pytest.raises(SystemExit, match=r"error: my\.yaml is there already"):
        run(monkeypatch, "my.yaml", "--members", "one/net.onnx")


def test_a_name_of_digits_is_a_name(tmp_path, monkeypatch):
    store(tmp_path / "models", "50", brightness())
    monkeypatch.chdir(tmp_path)
    run(monkeypatch, "my.yaml", "--members", "50")
    written, _ = check(read(tmp_path / "my.yaml")["applications"][0])
    assert [member.name for member in written.members] == ["50"]


def test_the_folder_of_a_saved_model_is_prepared(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match=r"error: .*--channel-order"):
        run(monkeypatch, "my.yaml", "--members", ROOT / "packages" / "models" / "tests" / "formats" / "saved_model")


def light_or_dark(gain):
    """Logits of light and dark, by the colours of pixels from 0 to 1, float32 [1,3,8,8] to [1,2]."""
    image = opset13.parameter([1, 3, 8, 8], ov.Type.f32)
    colours = opset13.reduce_mean(image, np.array([2, 3]), keep_dims=False)
    weights = gain * np.array([[-0.6, 0.6], [-0.3, 0.3], [-0.1, 0.1]], np.float32)
    return ov.Model(
        [opset13.add(opset13.matmul(colours, weights, False, False), gain * np.array([0.5, -0.5], np.float32))], [image]
    )


@pytest.fixture
def two_files(tmp_path):
    """Two files of models, and 400 images of one colour each in the folders of their classes."""
    random = np.random.default_rng(3)
    for name in ("dark", "light"):
        (tmp_path / "images" / name).mkdir(parents=True)
    for number, red_green_blue in enumerate(random.integers(0, 256, (400, 3))):
        light = red_green_blue @ [0.6, 0.3, 0.1] > 127.5
        pixels = np.tile(red_green_blue.astype(np.uint8)[::-1], (8, 8, 1))
        cv2.imwrite(str(tmp_path / "images" / ("light" if light else "dark") / f"{number}.png"), pixels)
    for name, gain in (("one", 20), ("two", 30)):
        ov.save_model(light_or_dark(gain), tmp_path / f"{name}.xml")
    return tmp_path


def test_files_of_models_are_served_as_they_would_be_configured(two_files, capsys):
    """In a folder that lasts as long as the server; what is served is printed."""
    arguments = [str(two_files / "one.xml"), str(two_files / "two.xml"), "--data", str(two_files / "images")]
    args = command.parser().parse_args(arguments)
    with command.configuration(args) as file:
        [application] = read(file)["applications"]
        config, agreed = check(application)
        assert [member.name for member in config.members] == ["one", "two"]
        assert agreed.labels == ("dark", "light")
        assert config.ensemble.quorum == 1
        assert file.read_text() in capsys.readouterr().out
        assert file.parent.stat().st_mode & 0o077 == 0
    assert not file.parent.exists()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["a.yaml", "b.yaml"], "one configuration is served"),
        (["a.yaml", "--data", "images"], "--data and --labels are for files of models"),
        (["missing.onnx"], "missing.onnx"),
    ],
)
def test_what_names_no_configuration_is_refused(arguments, reason, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with (
        pytest.raises((ScriptError, ModelError, ValueError), match=reason),
        command.configuration(command.parser().parse_args(arguments)),
    ):
        pass


def test_it_shows_which_members_pay(two_files, monkeypatch, capsys):
    monkeypatch.chdir(two_files)
    run(monkeypatch, "my.yaml", "--members", "one.xml", "two.xml", "--data", "images")
    out = capsys.readouterr().out
    assert re.search(r"Serve (one|two) by itself: these images show no ensemble that is better.", out)
    assert "repeat it on others by ensemble check my.yaml --data FOLDER" in out
