"""`ensemble plan`: what is said of bad input, and its outputs."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from types import SimpleNamespace

import msgspec
import psutil
import pytest
import yaml

from ensemble_capacity.load import machine
from ensemble_capacity.plan import __main__ as command
from ensemble_capacity.plan import measuring
from ensemble_capacity.plan import profile as profiles
from ensemble_capacity.plan.placements import asking_all, placed, tuned
from ensemble_capacity.plan.server import opened, serving
from packages.capacity.tests.plan.profiles import ROOT, application, curve, profile
from scripts import configuration
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
    monkeypatch.setattr("ensemble_capacity.plan.scenario.available_cpus", lambda: 1)
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


def test_other_files_of_a_model_have_a_profile_of_their_own_and_other_settings_share_it(tmp_path):
    store(tmp_path, "one", brightness())
    config = {"args": {"model_repository": str(tmp_path), "members": [{"name": "one"}]}}
    first = profiles.kept_file(config, [b"x"])
    assert profiles.kept_file(config, [b"x"]) == first
    faster = {"name": "one", "threads": 2, "streams": 2, "placement": "separate"}
    changed = {"args": {**config["args"], "members": [faster], "ingress": {"max_batch_size": 4}}}
    assert profiles.kept_file(changed, [b"x"]) == first
    store(tmp_path, "one", brightness(), 2)
    second = profiles.kept_file(config, [b"x"])
    assert second not in {first, profiles.kept_file(config, [b"y"])}


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


def test_a_profile_is_kept_at_once_and_goes_on_where_it_was_interrupted(tmp_path, monkeypatch):
    options = SimpleNamespace(profile=tmp_path / "profile.json", measure=False)
    config, done, fails = configuration.read(ROOT / "configs/colocated.yaml"), [], ["separate"]

    def servers(begun, config, photographs, placement):
        done.append(placement)
        if placement in fails:
            raise ScriptError("the server did not start")
        return msgspec.structs.replace(begun, served={**begun.served, placement: profile().served[placement]})

    async def decoding(*_):
        done.append("decoding")
        return curve()

    async def members(config, agreed, settings):
        done.append(settings["threads"])
        return {"resnet": curve(settings["threads"]), "densenet": curve(settings["threads"])}

    for each in (servers, decoding, members):
        monkeypatch.setattr(measuring, each.__name__, each)
    with pytest.raises(ScriptError, match="did not start"):
        command.profile_of(options, config, [b"image"])
    assert done[0] == "decoding"
    assert done[-2:] == ["inline", "separate"]
    done.clear()
    fails.clear()
    found = command.profile_of(options, config, [b"image"])
    assert done == ["separate"]
    assert found.is_complete
    assert len(found.others) > 3
    assert command.profile_of(options, config, [b"image"]) == found
    assert done == ["separate"]


def test_the_work_of_other_processes_is_measured_and_named(monkeypatch):
    busy, used = iter([0.0, 1000.0]), iter([{(1, "other"): 5.0}, {(1, "other"): 905.0, (2, "small"): 1.0}])
    monkeypatch.setattr(machine, "_busy", lambda: next(busy))
    monkeypatch.setattr(machine, "_cpu_by_process", lambda: next(used))
    monkeypatch.setattr(machine, "LOOK_S", 0.01)
    with machine.Others() as others:
        # The work of this command's own servers is none of others, though they have ended.
        code = "import time\nwhile time.process_time() < 0.5: pass\nprint(flush=True)\ninput()"
        with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
            child.stdout.readline()
            while others._own.seen.get(psutil.Process(child.pid), ("", 0.0))[1] < 0.4:
                time.sleep(0.01)
            child.communicate(b"\n")
    assert 900 < others.cpu_s <= 999.6
    assert others.name == "other"
    assert "up to 40% of the cores (the most: python3)" in profile(others=((0.0, ""), (0.8, "python3"))).noise()
    assert profile(others=((0.05, "sshd"),)).noise() == ""


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
    assert len(command.photographs([tmp_path])) == 2
    for number in range(100):
        (tmp_path / f"c{number}.jpg").write_bytes((ROOT / "tests" / "cat.jpg").read_bytes())
    # Of many, some of all.
    assert 16 <= len(command.photographs([tmp_path])) <= 32
