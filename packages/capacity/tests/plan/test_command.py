"""`ensemble plan`: what is said of bad input, and its outputs."""

from __future__ import annotations

import argparse
import json
import sys

import msgspec
import pytest
import yaml
from ensemble_capacity.plan.placements import placed, tuned

from ensemble_capacity.plan import __main__ as command
from ensemble_capacity.plan import profile as profiles
from ensemble_capacity.plan.measuring import asking_all
from ensemble_capacity.plan.server import opened, serving
from packages.capacity.tests.plan.profiles import ROOT, application, profile
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
    assert "16 cores were not measured" in printed


def test_it_prints_json(plan):
    found = json.loads(plan("--json", "--concurrency", "1", "--rate", "9000"))
    assert [each["load"] for each in found["predicted"]] == ["9000/s", "1 at a time"]
    # More than it answers.
    assert found["predicted"][0]["p99_ms"] is None
    assert found["predicted"][1]["requests_per_s"] == pytest.approx(1000, rel=0.01)


def test_a_profile_of_another_machine_is_about_its_cores(plan, monkeypatch):
    here = plan("--json", "--cores", "2")
    monkeypatch.setattr("ensemble_capacity.plan.setting.available_cpus", lambda: 1)
    assert json.loads(plan("--json")) == json.loads(here)


@pytest.mark.parametrize(
    "arguments", [["--rate", "0"], ["--rate", "nan"], ["--concurrency", "0"], ["--exits", "2"], ["--images", "cat.jpg"]]
)
def test_bad_input_is_a_usage_error(plan, arguments):
    with pytest.raises(SystemExit) as raised:
        plan(*arguments)
    assert raised.value.code == 2


def test_what_is_no_image_is_not_measured(plan, tmp_path):
    (tmp_path / "words.jpg").write_text("no image")
    with pytest.raises(SystemExit, match=r"words\.jpg: the body is not an image"):
        plan("--images", str(tmp_path / "words.jpg"), "--measure")


def test_exits_are_those_of_a_cascade(plan):
    with pytest.raises(SystemExit, match="--exits is for a cascade"):
        plan("--exits", "0.5")


def test_one_application_is_planned(plan, tmp_path, monkeypatch):
    (tmp_path / "none.yaml").write_text("applications: []")
    monkeypatch.setattr(sys, "argv", ["ensemble plan", str(tmp_path / "none.yaml")])
    with pytest.raises(SystemExit, match="one application"):
        command.main()


def test_a_placement_is_a_whole_configuration():
    config = {"applications": [application()]}
    separate = placed(config, "separate", ingresses=2, nodes=2)
    counts = {each["name"]: each["num_replicas"] for each in separate["applications"][0]["deployments"]}
    names = {"Ingress": 2, "JpegTransformer": 2, "resnet": 2, "densenet": 2, "Combiner": 1, "Labeler": 1}
    assert counts == names
    back = placed(separate, "inline")["applications"][0]
    assert [each["name"] for each in back["deployments"]] == ["Ingress"]
    assert back["args"]["members"] == config["applications"][0]["args"]["members"]


def test_replicas_for_several_machines_fit_on_one():
    config = placed({"applications": [application("configs/cluster.yaml")]}, "separate", ingresses=2, nodes=2)
    deployments = config["applications"][0]["deployments"]
    assert {each["num_replicas"] for each in deployments} == {1, 2}
    assert not any("max_replicas_per_node" in each for each in deployments)


def test_a_cascade_is_profiled_with_every_member_for_every_image():
    config = asking_all(placed({"applications": [application("configs/cascade.yaml")]}, "inline"))
    assert config["applications"][0]["args"]["ensemble"]["cascade"]["exit_at"] == [1.0]
    assert "cascade" not in asking_all({"applications": [application()]})["applications"][0]["args"]["ensemble"]


def test_settings_replace_those_that_were_there():
    config = {"applications": [application(batch_wait_ms=2)]}
    changed = tuned(config, threads=2, ingress={"max_batch_size": 4})["applications"][0]["args"]
    assert changed["ingress"] == {"batch_wait_ms": 2, "max_batch_size": 4}
    assert [member["threads"] for member in changed["members"]] == [2, 2]
    assert "threads" not in config["applications"][0]["args"]["members"][0]


def test_other_files_of_a_model_have_a_profile_of_their_own(tmp_path):
    store(tmp_path, "one", brightness())
    config = {"args": {"model_repository": str(tmp_path), "members": [{"name": "one"}]}}
    first = command._key(config, [b"x"])
    assert command._key(config, [b"x"]) == first
    store(tmp_path, "one", brightness(), 2)
    second = command._key(config, [b"x"])
    assert second not in {first, command._key(config, [b"y"])}


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


def test_a_server_that_does_not_start_costs_no_profile_of_the_nodes(tmp_path, monkeypatch):
    args = argparse.Namespace(profile=tmp_path / "profile.json", measure=False)
    config = yaml.safe_load((ROOT / "configs/colocated.yaml").read_text())
    asked = []

    def nodes(*_):
        asked.append("nodes")
        return profile(served={})

    def server(begun, *_):
        asked.append("server")
        if len(asked) == 2:
            raise ScriptError("the server did not start")
        return msgspec.structs.replace(begun, served=profile().served)

    monkeypatch.setattr("ensemble_capacity.plan.measuring.measure_nodes", nodes)
    monkeypatch.setattr("ensemble_capacity.plan.measuring.measure_server", server)
    with pytest.raises(ScriptError, match="did not start"):
        command.profile_of(args, config, [b"image"])
    for _ in range(2):
        assert command.profile_of(args, config, [b"image"]) == profile()
    assert asked == ["nodes", "server", "server"]


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
    assert len(command.photographs(argparse.Namespace(images=[tmp_path]))) == 2
