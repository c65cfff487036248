"""What the package takes of Ray is there, in the version that it was read in; no other module takes it."""

import inspect
import os
import re
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
import ray
from ray._common.constants import HEAD_NODE_RESOURCE_NAME
from ray._common.utils import load_class
from ray._private import node, parameter, ray_constants, services
from ray.dashboard.subprocesses.module import SubprocessModuleConfig
from ray.serve import context
from ray.serve._private import client
from ray.serve._private.common import ReplicaState
from ray.serve.config import HTTPOptions
from ray.serve.schema import ReplicaDetails

from graph.ray_internals import RAY_VERSION, dashboard, head, serve_client, serve_interface
from graph.ray_internals.dashboard import APPLICATIONS
from scripts.serve.environment import ON_LOOPBACK, TOKEN_PATH, switches
from tests.conftest import ROOT


def test_ray_is_of_the_version_that_was_read():
    assert ray.__version__.startswith(f"{RAY_VERSION}.")


# Imports of modules, or of names, that Ray does not promise.
PRIVATE = re.compile(
    r"^\s*(from|import) ray\.(\w+\.)*_|^\s*from ray\b.* import .*\b_|"
    r"^\s*(from|import) ray\.(experimental|core|dashboard|autoscaler|serve\.(context|generated))\b|__internal_head__",
    re.MULTILINE,
)


def test_no_other_module_imports_what_is_private():
    packages = ("graph", "deployments", "models", "scripts", "packages", "lab", "examples")
    files = [file for folder in packages for file in (ROOT / folder).rglob("*.py")]
    private = {file for file in files if PRIVATE.search(file.read_text())}
    assert {file.parent for file in private} == {ROOT / "graph" / "ray_internals"}
    assert {file.name for file in private} == {
        "agent.py",
        "dashboard.py",
        "head.py",
        "node.py",
        "noticeboard.py",
        "serve_client.py",
        "serve_interface.py",
    }


def test_every_switch_of_rays_is_one_that_it_reads():
    names = {name for name in {**switches(), **ON_LOOPBACK, TOKEN_PATH: ""} if name.startswith("RAY_")}
    source = "".join(file.read_text() for file in Path(ray.__file__).parent.rglob("*.py") if "tests" not in file.parts)
    # Ray's core reads these; its name for a switch there has no prefix.
    core = Path(find_spec("ray._raylet").origin).read_bytes()
    unread = {name for name in names if f'"{name}"' not in source and name.encode() not in core}
    assert unread <= set()


def test_the_dashboards_address_is_where_ray_keeps_it():
    assert (dashboard.KEY, dashboard.NAMESPACE.encode()) == (
        ray_constants.DASHBOARD_ADDRESS,
        ray_constants.KV_NAMESPACE_DASHBOARD,
    )
    assert {HEAD_NODE_RESOURCE_NAME} == set(dashboard.ON_HEAD)
    assert "namespace" in inspect.signature(dashboard._internal_kv_get).parameters
    routes = Path(find_spec("ray.dashboard.modules.serve").origin).with_name("serve_head.py").read_text()
    assert f'routes.put("{dashboard.APPLICATIONS}")' in routes


def test_serves_host_is_that_of_its_client(monkeypatch):
    assert inspect.signature(context._get_global_client).return_annotation == client.ServeControllerClient | None
    assert isinstance(inspect.getattr_static(client.ServeControllerClient, "http_config"), property)
    for serve, host in ((SimpleNamespace(http_config=HTTPOptions(host="here")), "here"), (None, "")):
        monkeypatch.setattr(serve_client, "_get_global_client", lambda serve=serve: serve)
        assert serve_client.http_host() == host


def test_replicas_are_counted_by_state_and_machine(monkeypatch):
    assert {"state", "node_ip"} <= ReplicaDetails.model_fields.keys()
    listed = [{"state": ReplicaState.RUNNING, "node_ip": "10.0.0.1"}] * 2 + [{"state": "STARTING", "node_ip": None}]
    details = {"applications": {"ensemble": {"deployments": {"one": {"replicas": listed}}}}}
    assert callable(client.ServeControllerClient.get_serve_details)
    serve = SimpleNamespace(get_serve_details=lambda: details)
    monkeypatch.setattr(serve_client, "_get_global_client", lambda: serve)
    assert serve_client.replicas("ensemble") == {"one": {("RUNNING", "10.0.0.1"): 2, ("STARTING", ""): 1}}


def test_ray_starts_its_raylet_and_dashboard_by_the_functions_that_are_replaced():
    assert {"start_ray_process", "PROCESS_TYPE_RAYLET"} <= set(services.start_raylet.__code__.co_names)
    parameters = list(inspect.signature(services.start_ray_process).parameters)
    assert parameters[:2] == ["command", "process_type"]
    assert "cwd" in parameters
    assert "start_api_server" in node.Node.start_head_processes.__code__.co_names
    announced = {"_webui_url", "DASHBOARD_ADDRESS", "KV_NAMESPACE_DASHBOARD"}
    code = node.Node.start_api_server.__code__, services.start_api_server.__code__
    assert announced | {"PROCESS_TYPE_DASHBOARD"} <= {name for each in code for name in each.co_names}
    assert "webui:url" in inspect.getsource(node.Node.start_api_server)
    assert head.DASHBOARD_PORT == ray_constants.DEFAULT_DASHBOARD_PORT


def test_a_worker_runs_what_it_is_given_before_its_first_task():
    worker = Path(find_spec("ray._private.workers.default_worker").origin).read_text()
    assert worker.index("WORKER_PROCESS_SETUP_HOOK_ENV_VAR") < worker.index("worker.main_loop()")


class Node:
    """Ray's, as far as it is used; its constructor starts nothing."""

    signature = inspect.signature(node.Node.__init__)
    gcs_address, session_name, cluster_id = "here:1", "session", bytes(2)

    def __init__(self, *args, **more):
        # Fails as Ray's own would.
        bound = self.signature.bind(self, *args, **more).arguments
        assert bound["head"]
        self.kept = {}
        self.start_api_server(include_dashboard=True, raise_on_failure=True)
        services.start_ray_process(["run", "--python_worker_command=python"], ray_constants.PROCESS_TYPE_RAYLET, True)

    def start_api_server(self, **_):
        self._webui_url = "here:2"
        services.start_ray_process(["run"], ray_constants.PROCESS_TYPE_DASHBOARD, True)

    @property
    def webui_url(self):
        return self._webui_url

    def get_gcs_client(self):
        return SimpleNamespace(internal_kv_put=lambda key, value, *_: self.kept.update({key: value}))

    def get_logs_dir_path(self):
        return str(FOLDER[0])

    get_session_dir_path = get_logs_dir_path


FOLDER = []


@pytest.mark.parametrize("whole", [True, False])
def test_a_head_is_started_with_parameters_that_ray_takes(whole, tmp_path, monkeypatch):
    theirs = {*dir(node.Node), *node.Node.start_api_server.__code__.co_names}
    assert {name for name in vars(Node) if not name.startswith("__")} - {"signature"} <= theirs
    commands, FOLDER[:] = [], [tmp_path]
    monkeypatch.setattr(node, "Node", type("Node", (Node,), {}))
    monkeypatch.setattr(services, "start_ray_process", lambda *args, cwd=None: commands.append((args[0], cwd)))
    monkeypatch.setattr(os, "environ", {"RAY_METRICS_PORT": "7"})
    started = head.start(str(tmp_path / "ray"), whole, "/a/socket")
    assert (started["address"], started["session"]) == ("here:1", str(tmp_path))
    *dashboard, ([run, worker], folder) = commands
    # The workers' first folder to import from: nobody can put a module there, on any machine.
    assert dashboard == ([(["run"], "/proc")] if whole else [])
    assert (run, folder) == ("run", None)
    assert callable(load_class(os.environ[ray_constants.WORKER_PROCESS_SETUP_HOOK_ENV_VAR]))
    assert "fork_client.py /a/socket leave python" in worker
    if whole:
        assert (started["dashboard"], started["interface"]) == ("http://here:2", [])
        return
    port = started["dashboard"].rpartition(":")[2]
    assert started["dashboard"] == f"http://127.0.0.1:{port}"
    assert {f"--port={port}", "--gcs-address=here:1", "--cluster-id=0000", "--session=session"} <= set(
        started["interface"]
    )


def test_serves_interface_has_the_dashboards_paths_and_asks_for_its_token():
    made = serve_interface.application(object.__new__(serve_interface.ServeHead))
    paths = {(route.method, route.resource.canonical) for route in made.router.routes()}
    assert {(method, APPLICATIONS) for method in ("GET", "PUT", "DELETE")} | {("GET", "/api/ray/version")} <= paths
    assert {each.__name__ for each in made.middlewares} == {"token_auth_middleware", "browser_request_middleware"}
    fields = inspect.signature(SubprocessModuleConfig).parameters
    assert {"gcs_address", "cluster_id_hex", "session_name"} <= set(fields)


def test_a_further_node_is_joined_with_parameters_that_ray_takes():
    from graph.ray_internals.node import parameters

    made = parameters("127.0.0.1:6379")
    assert isinstance(made, parameter.RayParams)
    assert made.gcs_address == "127.0.0.1:6379"
    assert "check_alive" in inspect.signature(node.Node.kill_all_processes).parameters


def test_serves_interface_listens_elsewhere_if_another_process_has_its_port():
    with serve_interface.listening(0) as first:
        wanted = first.getsockname()[1]
        with serve_interface.listening(wanted) as second:
            assert second.getsockname()[1] != wanted
