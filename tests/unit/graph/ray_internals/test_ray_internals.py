"""What the package takes of Ray is there, in the version that it was read in; no other module takes it."""

import inspect
import json
from importlib.util import find_spec
from pathlib import Path

import pytest
import ray
from ray._private import node, parameter, ray_constants, services

from graph.ray_internals import RAY_VERSION, head
from tests.conftest import ROOT


def test_ray_is_of_the_version_that_was_read():
    assert ray.__version__.startswith(f"{RAY_VERSION}.")


def test_no_other_module_imports_what_is_private():
    files = [file for folder in ("graph", "deployments", "models", "scripts") for file in (ROOT / folder).rglob("*.py")]
    private = {file for file in files if "ray._private" in file.read_text() or "ray.serve._private" in file.read_text()}
    assert {file.parent for file in private} == {ROOT / "graph" / "ray_internals"}


def test_ray_starts_its_dashboard_by_the_function_that_is_replaced():
    names = services.start_api_server.__code__.co_names
    assert {"start_ray_process", "PROCESS_TYPE_DASHBOARD"} <= set(names)
    assert list(inspect.signature(services.start_ray_process).parameters)[:2] == ["command", "process_type"]
    assert '"--modules-to-load"' in Path(find_spec("ray.dashboard.dashboard").origin).read_text()
    serve_head = Path(find_spec("ray.dashboard.modules.serve").origin).with_name("serve_head.py").read_text()
    assert all(f"class {name}" in serve_head for name in head.DASHBOARD_MODULES)
    assert head.DISCOVERY == ray_constants.PROMETHEUS_SERVICE_DISCOVERY_FILE


@pytest.mark.parametrize("whole", [True, False])
def test_a_head_is_started_with_parameters_that_ray_takes(whole, tmp_path, monkeypatch):
    commands = []

    class Node:
        def __init__(self, *args, **more):
            # Fails as Ray's own would, of which the constructor starts processes.
            bound = signature.bind(self, *args, **more).arguments
            self.parameters, self.gcs_address, self.webui_url = bound["ray_params"], "here:1", "here:2"
            assert bound["head"]
            for process_type in (ray_constants.PROCESS_TYPE_DASHBOARD, ray_constants.PROCESS_TYPE_RAYLET):
                services.start_ray_process(["run"], process_type, True)

        def get_temp_dir_path(self):
            return str(tmp_path)

        def get_session_dir_path(self):
            return "session"

    assert {name for name in vars(Node) if name.startswith("get_")} | {"gcs_address", "webui_url"} <= set(
        dir(node.Node)
    )
    signature = inspect.signature(node.Node.__init__)
    monkeypatch.setattr(node, "Node", Node)
    monkeypatch.setattr(services, "start_ray_process", lambda command, *_: commands.append(command))
    assert head.start(whole) == {"address": "here:1", "dashboard": "http://here:2", "session": "session"}
    assert commands == [["run"] if whole else ["run", "--modules-to-load=ServeHead"], ["run"]]
    assert json.loads((tmp_path / head.DISCOVERY).read_text())[0]["labels"] == {"job": "ray"}


def test_a_further_node_is_joined_with_parameters_that_ray_takes():
    from graph.ray_internals.node import parameters

    made = parameters("127.0.0.1:6379")
    assert isinstance(made, parameter.RayParams)
    assert made.gcs_address == "127.0.0.1:6379"
    assert "check_alive" in inspect.signature(node.Node.kill_all_processes).parameters
