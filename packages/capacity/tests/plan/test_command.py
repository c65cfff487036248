"""`ensemble plan`: what is said of bad input, and its outputs."""

from __future__ import annotations

import json
import sys

import pytest
import yaml

from ensemble_capacity.load.__main__ import photographs
from ensemble_capacity.plan import __main__ as command
from ensemble_capacity.plan import profile as profiles
from ensemble_capacity.serving import opened, serving
from packages.capacity.tests.plan.profiles import ROOT, profile
from scripts.errors import ScriptError
from tests.networks import brightness, store


@pytest.fixture
def plan(tmp_path, monkeypatch, capsys):
    """Runs the command on a shipped configuration and the profile."""
    file = tmp_path / "profile.json"
    profiles.write(profile(), file)

    def run(*arguments):
        given = ["ensemble plan", str(ROOT / "configs/colocated.yaml"), "--profile", str(file), *arguments]
        monkeypatch.setattr(sys, "argv", given)
        command.main()
        return capsys.readouterr().out

    return run


def test_it_prints_a_table(plan):
    printed = plan("--concurrency", "1", "--rate", "100", "--cores", "16")
    assert "1 at a time" in printed
    assert "100/s" in printed
    assert "Predicted, not measured" in printed
    assert "16 cores were not measured: predicted for 8 times the replicas" in printed


def test_it_prints_json(plan):
    found = json.loads(plan("--json", "--concurrency", "1", "--rate", "9000"))
    assert [each["load"] for each in found["predicted"]] == ["9000/s", "1 at a time"]
    # More than it answers.
    assert found["predicted"][0]["refused"] > 0.9
    assert found["predicted"][1]["requests_per_s"] == pytest.approx(100, rel=0.01)


@pytest.mark.parametrize(
    "arguments", [["--rate", "0"], ["--rate", "nan"], ["--concurrency", "0"], ["--images", "cat.jpg"]]
)
def test_bad_input_is_a_usage_error(plan, arguments):
    with pytest.raises(SystemExit) as raised:
        plan(*arguments)
    assert raised.value.code == 2


def test_what_is_no_image_is_not_measured(plan, tmp_path):
    (tmp_path / "words.jpg").write_text("no image")
    with pytest.raises(SystemExit, match=r"words\.jpg: the body is not an image"):
        plan("--images", str(tmp_path / "words.jpg"), "--measure")


def test_one_application_is_planned(plan, tmp_path, monkeypatch):
    (tmp_path / "none.yaml").write_text("applications: []")
    monkeypatch.setattr(sys, "argv", ["ensemble plan", str(tmp_path / "none.yaml")])
    with pytest.raises(SystemExit, match="one application"):
        command.main()


def test_a_profile_is_read_as_it_was_written(tmp_path):
    file = tmp_path / "new" / "profile.json"
    profiles.write(profile(), file)
    assert profiles.read(file) == profile()
    file.write_text("{}")
    with pytest.raises(ScriptError, match="--measure"):
        profiles.read(file)


def test_other_settings_images_and_files_of_a_model_have_a_profile_of_their_own(tmp_path):
    store(tmp_path, "one", brightness())

    def kept(image, **member):
        members = [{"name": "one", **member}]
        args = {"model_repository": str(tmp_path), "members": members}
        return profiles.kept_file({"applications": [{"import_path": "graph.app:build", "args": args}]}, [image])

    first = kept(b"x")
    assert kept(b"x") == first
    assert len({first, kept(b"y"), kept(b"x", threads=2)}) == 3
    store(tmp_path, "one", brightness(), 2)
    assert kept(b"x") != first


def test_a_server_to_measure_has_neither_keys_nor_an_address_outside():
    config = {
        "http_options": {"host": "0.0.0.0", "port": 1},
        "applications": [
            {
                "import_path": "graph.app:build",
                "args": {"access": {"keys": "k"}, "cache": {"per_key": True, "ttl_s": 1}},
            }
        ],
    }
    assert opened(config) == {
        "http_options": {"host": "127.0.0.1", "port": 1},
        "applications": [{"import_path": "graph.app:build", "args": {"cache": {"ttl_s": 1}}}],
    }
    assert "access" in config["applications"][0]["args"]


def test_a_server_is_measured_from_a_folder_with_other_code_of_our_names(tmp_path, monkeypatch):
    (tmp_path / "graph.py").write_text("raise SystemExit('the wrong graph')")
    monkeypatch.chdir(tmp_path)
    config = yaml.safe_load((ROOT / "configs/colocated.yaml").read_text())
    config["applications"][0]["args"]["no_such"] = 1
    # The right code has read it.
    with pytest.raises(ScriptError, match="no_such"), serving(config):
        pass


def test_the_images_of_a_folder_are_measured_with(tmp_path):
    for name in ("b.jpg", "a.jpg"):
        (tmp_path / name).write_bytes((ROOT / "tests" / "cat.jpg").read_bytes())
    (tmp_path / "notes.txt").touch()
    assert len(photographs([tmp_path])) == 2
    for number in range(100):
        (tmp_path / f"c{number}.jpg").write_bytes((ROOT / "tests" / "cat.jpg").read_bytes())
    # Of many, some of all.
    assert 16 <= len(photographs([tmp_path])) <= 32
