"""`ensemble plan`: what is said of bad input, and its outputs."""

from __future__ import annotations

import json
import sys
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import yaml

from ensemble_capacity.load.__main__ import photographs
from ensemble_capacity.plan import __main__ as command
from ensemble_capacity.plan.model import predict
from ensemble_capacity.serving import opened, serving
from ensemble_capacity.tune.__main__ import main as tune
from packages.capacity.tests.plan.profiles import ROOT, application, loop, profile
from scripts import configuration
from scripts.errors import ScriptError


@pytest.fixture
def plan(monkeypatch, capsys):
    """Runs the command on a shipped configuration, with a profile that no server was measured for."""
    monkeypatch.setattr(command, "measure", lambda config, images: profile())
    monkeypatch.setattr(command, "available_cpus", lambda: 2)

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["ensemble plan", str(ROOT / "configs/colocated.yaml"), *arguments])
        command.main()
        return capsys.readouterr().out

    return run


def test_it_prints_a_table(plan):
    printed = plan("--concurrency", "1", "--cores", "2", "16")
    assert printed.count("1 at a time") == 2
    assert "not measured" in printed
    assert "Only 2 cores were measured" in printed
    assert "Only" not in plan("--concurrency", "1")


def test_it_prints_json(plan):
    found = json.loads(plan("--json", "--concurrency", "1", "8"))
    assert [(each["clients"], each["cores"]) for each in found["predicted"]] == [(1, 2), (8, 2)]
    assert found["predicted"][1]["requests_per_s"] == pytest.approx(100, rel=0.01)
    assert found["predicted"][1]["intervals"]["requests_per_s"] == pytest.approx([73.5, 136], rel=0.01)


@pytest.mark.parametrize("arguments", [["--cores", "0"], ["--concurrency", "0"], ["--concurrency", "1001"]])
def test_bad_input_is_a_usage_error(plan, arguments):
    with pytest.raises(SystemExit) as raised:
        plan(*arguments)
    assert raised.value.code == 2


def test_a_load_above_those_that_were_checked_is_unknown_and_said_to_be(plan):
    printed = plan("--concurrency", "8", "50")
    assert printed.count("unknown") == 2
    assert "Unknown above 48 clients on 2 cores" in printed
    assert "Unknown" not in plan("--concurrency", "8")


@pytest.mark.parametrize(
    ("requests", "reason"), [(1000, "speed changed meanwhile"), (37, "A load had 37 requests, too few for a p99")]
)
def test_why_an_interval_is_wide_is_said(requests, reason):
    checks = tuple(loop(48, 100, ratio, requests) for ratio in (0.5, 2.0, 0.5, 2.0))
    wide = profile(checks=checks)
    found = [predict(wide, 8, 2)]
    notes = [note for note in command.notes(found, wide) if note.startswith("p99_ms")]
    assert "0.50 to 2.00 times the predicted value" in notes[0]
    assert reason in notes[0]


def test_what_is_no_image_is_not_measured(plan, tmp_path):
    (tmp_path / "words.jpg").write_text("no image")
    with pytest.raises(SystemExit, match=r"words\.jpg: the body is not an image"):
        plan("--images", str(tmp_path / "words.jpg"))


def test_one_application_is_planned(plan, tmp_path, monkeypatch):
    (tmp_path / "none.yaml").write_text("applications: []")
    monkeypatch.setattr(sys, "argv", ["ensemble plan", str(tmp_path / "none.yaml")])
    with pytest.raises(SystemExit, match="one application"):
        command.main()


@pytest.mark.parametrize(("name", "main", "more"), [("plan", command.main, []), ("tune", tune, ["--p99-ms", "9"])])
def test_features_are_read_before_anything_is_served(tmp_path, monkeypatch, name, main, more):
    config = configuration.read(ROOT / "configs/colocated.yaml")
    config["applications"][0]["args"]["features"] = {"gone": {}}
    (tmp_path / "gone.yaml").write_text(yaml.safe_dump(config))
    monkeypatch.setattr(sys, "argv", [f"ensemble {name}", str(tmp_path / "gone.yaml"), *more])
    with pytest.raises(SystemExit, match=r"features: .*gone"):
        main()


class Measured:
    """Servers that answer every load; the configurations that they serve, and the loads."""

    def __init__(self, monkeypatch):
        self.served, self.loads = [], []
        monkeypatch.setattr(command, "serving", self.serving)
        monkeypatch.setattr(command, "loaded", self.loaded)

    @contextmanager
    def serving(self, config):
        self.served.append(config)
        yield "http://there"

    def loaded(self, url, images, load, seconds):
        self.loads.append(load.concurrency)
        return SimpleNamespace(
            value=load.concurrency,
            requests=10,
            failed=0,
            requests_per_s=min(100.0, load.concurrency),
            percentiles_ms=dict.fromkeys(("p50", "p99"), 10.0),
            server=SimpleNamespace(memory_mb={"ray::one": 1.0, "haproxy": 2.0}, cpu_s={"one": 1.0}),
            per_request=lambda used: used / 100,
        )


def test_a_profile_has_loops_and_others_that_check_them(monkeypatch):
    measured = Measured(monkeypatch)
    found = command.measure({"applications": [application()]}, [b"x"])
    assert measured.loads == [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64]
    assert tuple(each.clients for each in found.loops) == command.CLIENTS
    assert tuple(each.clients for each in found.checks) == command.CHECKED
    assert (found.reach, found.replicas_mb, found.rest_mb) == (48, 1.0, 2.0)


def test_a_profile_is_of_the_replicas_at_the_start(monkeypatch):
    measured = Measured(monkeypatch)
    given = application(max_in_flight=10)
    scaled = {"initial_replicas": 2, "min_replicas": 0, "max_replicas": 6}
    given["deployments"] = [{"name": "Ingress", "num_replicas": "auto", "autoscaling_config": scaled}]
    served = command.fixed({"applications": [given]})
    assert served["applications"][0]["deployments"] == [{"name": "Ingress", "num_replicas": 2}]
    assert given["deployments"][0]["autoscaling_config"] == scaled
    command.measure(served, [b"x"])
    # Each of the two admits ten images, and no loop is longer.
    assert max(measured.loads) == 16
    scaled["initial_replicas"] = None
    assert command.fixed({"applications": [given]})["applications"][0]["deployments"][0]["num_replicas"] == 1


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
