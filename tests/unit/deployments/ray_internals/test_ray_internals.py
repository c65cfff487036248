"""What the package uses of Ray is there, in each version that the tests run with; no other module uses it."""

import inspect
import re
import tomllib
from importlib.util import find_spec
from pathlib import Path
from pkgutil import resolve_name
from types import SimpleNamespace

import pytest
import ray
from ray._common.constants import HEAD_NODE_RESOURCE_NAME
from ray._private import ray_constants
from ray.dashboard.subprocesses.module import SubprocessModuleConfig
from ray.experimental import internal_kv
from ray.serve import context
from ray.serve._private import client
from ray.serve._private.common import ReplicaState
from ray.serve.config import HTTPOptions
from ray.serve.schema import ReplicaDetails

from deployments.ray_internals import compatibility, dashboard, serve_client, serve_interface, start
from deployments.ray_internals.dashboard import APPLICATIONS
from scripts.serve.environment import ON_LOOPBACK, TOKEN_PATH, switches
from tests.conftest import ROOT


def test_the_oldest_ray_that_is_allowed_is_the_one_that_is_tried():
    tried = re.search(r"^ray==(\S+)", (ROOT / "tests" / "requirements-oldest-ray.lock").read_text(), re.MULTILINE)[1]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert [each for each in project["dependencies"] if each.startswith(f"ray[serve]>={tried},<")]


INTERNALS = {name: each for name, each in vars(compatibility).items() if isinstance(each, compatibility.Internal)}


@pytest.mark.parametrize("name", INTERNALS)
def test_the_installed_ray_has_what_is_used_of_it(name):
    assert INTERNALS[name].problem() is None


# Imports of modules, or of names, that Ray does not promise.
PRIVATE = re.compile(
    r"^\s*(from|import) ray\.(\w+\.)*_|^\s*from ray\b.* import .*\b_|"
    r"^\s*(from|import) ray\.(experimental|core|dashboard|autoscaler|serve\.(context|generated))\b|__internal_head__",
    re.MULTILINE,
)


def test_no_other_module_imports_what_is_private():
    packages = ("graph", "deployments", "models", "scripts", "packages", "examples")
    files = [file for folder in packages for file in (ROOT / folder).rglob("*.py")]
    private = {file for file in files if PRIVATE.search(file.read_text())}
    assert {file.parent for file in private} == {ROOT / "deployments" / "ray_internals"}
    assert {file.name for file in private} == {
        "dashboard.py",
        "kv.py",
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
    assert dashboard.PORT == ray_constants.DEFAULT_DASHBOARD_PORT
    assert "namespace" in inspect.signature(internal_kv._internal_kv_get).parameters
    routes = Path(find_spec("ray.dashboard.modules.serve").origin).with_name("serve_head.py").read_text()
    assert f'routes.put("{dashboard.APPLICATIONS}")' in routes


def test_serves_host_is_that_of_its_client(monkeypatch):
    assert inspect.signature(context._get_global_client).return_annotation == client.ServeControllerClient | None
    assert isinstance(inspect.getattr_static(client.ServeControllerClient, "http_config"), property)
    for serve, host in ((SimpleNamespace(http_config=HTTPOptions(host="here")), "here"), (None, "")):
        monkeypatch.setattr(context, "_get_global_client", lambda serve=serve: serve)
        monkeypatch.setattr("ray.is_initialized", lambda: True)
        assert serve_client.http_host() == host


def test_replicas_are_counted_by_state_and_machine(monkeypatch):
    assert {"state", "node_ip"} <= ReplicaDetails.model_fields.keys()
    listed = [{"state": ReplicaState.RUNNING, "node_ip": "10.0.0.1"}] * 2 + [{"state": "STARTING", "node_ip": None}]
    details = {"applications": {"ensemble": {"deployments": {"one": {"replicas": listed}}}}}
    assert callable(client.ServeControllerClient.get_serve_details)
    serve = SimpleNamespace(get_serve_details=lambda: details)
    monkeypatch.setattr(context, "_get_global_client", lambda: serve)
    monkeypatch.setattr("ray.is_initialized", lambda: True)
    assert serve_client.replicas("ensemble") == {"one": {("RUNNING", "10.0.0.1"): 2, ("STARTING", ""): 1}}


def test_a_worker_and_ray_start_run_what_they_are_given():
    assert start.IN_EVERY_WORKER == ray_constants.WORKER_PROCESS_SETUP_HOOK_ENV_VAR
    assert start.IN_START == ray_constants.RAY_START_HOOK
    assert all(callable(resolve_name(name)) for name in (start.APPEND_FOLDER, start.WITHOUT_CLIENT))
    worker = Path(find_spec("ray._private.workers.default_worker").origin).read_text()
    assert worker.index("WORKER_PROCESS_SETUP_HOOK_ENV_VAR") < worker.index("worker.main_loop()")


def test_what_is_missing_is_named_and_warned_of_once(caplog):
    for name in ("ray:missing", "ray.missing:anything"):
        internal = compatibility.Internal("it is slower", ("ray:init", name))
        assert internal.problem() == f"Ray {ray.__version__} has no {name}: it is slower"
    assert (compatibility.has(internal), compatibility.has(internal)) == (False, False)
    assert caplog.messages == [internal.problem()]
    assert compatibility.has(compatibility.Internal("it is slower", ("ray:init",)))


def test_serves_interface_has_the_dashboards_paths_and_asks_for_its_token():
    made = serve_interface.make_application(object.__new__(serve_interface.ServeHead))
    paths = {(route.method, route.resource.canonical) for route in made.router.routes()}
    assert {(method, APPLICATIONS) for method in ("GET", "PUT", "DELETE")} | {("GET", "/api/ray/version")} <= paths
    assert {each.__name__ for each in made.middlewares} == {"token_auth_middleware", "browser_request_middleware"}
    fields = inspect.signature(SubprocessModuleConfig).parameters
    assert {"gcs_address", "cluster_id_hex", "session_name"} <= set(fields)


def test_serves_interface_listens_elsewhere_if_another_process_has_its_port():
    with serve_interface.listen(0) as first:
        wanted = first.getsockname()[1]
        with serve_interface.listen(wanted) as second:
            assert second.getsockname()[1] != wanted
