import os
import subprocess

import psutil
import pytest
import yaml

from deployments.contract.names import REFUSED
from scripts.configuration import IMPORT_PATH
from scripts.errors import ScriptError
from scripts.serve import deploy as module
from scripts.serve.cluster import mark
from scripts.serve.deploy import deploy, is_in_force

APPLICATION = {"name": "ensemble", "import_path": IMPORT_PATH, "args": {}}


def reported(status, name="ensemble", **args):
    return {"name": name, "status": status, "deployed_app_config": {"args": args}}


def test_what_serve_does_not_report_is_not_in_force():
    config, runs = {"applications": [APPLICATION]}, reported("RUNNING")
    assert is_in_force(config, [runs])
    assert not is_in_force(config, [runs, reported("DEPLOYING", "other")])
    assert not is_in_force(config, [reported("RUNNING", "other")])
    assert not is_in_force(config, [reported("RUNNING", cache={})])
    assert not is_in_force(config, [])


STARTED = {"http_options": {"host": "127.0.0.1"}, "applications": [APPLICATION]}


def application(**more):
    return {"applications": [{**APPLICATION, **more}]}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            {"http_options": {"host": "127.0.0.1", "port": 8100}},
            "http_options.port is 8100 in the file and 24000 until the server ends",
        ),
        (
            {"http_options": {"host": "127.0.0.1", "root_path": "/x"}},
            "http_options.root_path is '/x' in the file and not set until",
        ),
        (
            {"grpc_options": {"grpc_servicer_functions": []}},
            "grpc_servicer_functions is .*start `ensemble serve` with",
        ),
        (application(args={"front": "serve"}), "HAProxy takes requests until the server ends, and front: serve"),
        (application(route_prefix="/x"), "HAProxy takes requests until .* route_prefix is not /"),
        ({"applications": [APPLICATION, {**APPLICATION, "name": "b"}]}, "there are 2 applications"),
        (application(name="other"), "applications.0.name is 'other' in the file and 'ensemble' until"),
        (
            application(args={"protocols": ["mine:Words"]}),
            "applications.0.args.protocols is .'mine:Words'. in the file and not set until",
        ),
        ({"applications": []}, "would end the served application"),
    ],
)
def test_what_a_server_keeps_is_not_deployed(change, told):
    keeps = module.keeps(module.kept(STARTED), module.kept({**STARTED, "http_options": {"port": 24000}}))
    module.check_kept(STARTED, keeps)
    # The file may leave out what is the default, and may name what the flags have changed.
    module.check_kept(application(args={"cache": {}, "protocols": []}), keeps)
    module.check_kept({**STARTED, "http_options": {"port": 24000}}, keeps)
    with pytest.raises(ScriptError, match=told):
        module.check_kept({**STARTED, **change}, keeps)


def test_a_server_behind_serves_proxy_keeps_that():
    started = application(args={"front": "serve"})
    keeps = module.keeps(module.kept(started), module.kept(started))
    module.check_kept({"applications": [*started["applications"], {**APPLICATION, "name": "b"}]}, keeps)
    with pytest.raises(ScriptError, match="Serve's proxy takes requests until the server ends, and front: direct"):
        module.check_kept(STARTED, keeps)


def test_nothing_is_sent_that_would_end_the_service(server, monkeypatch):
    monkeypatch.setattr(Api, "deploy", None)
    server.write_text(yaml.safe_dump({"applications": []}))
    with pytest.raises(ScriptError, match="it has no application"):
        deploy(server)


class Api:
    """Serve's REST interface, whose replicas log a refusal of what is deployed; its first report does not come."""

    def __init__(self, log):
        self._log, self._reports = log, [[], [reported("DEPLOYING")], [reported("RUNNING")]]

    def deploy(self, config):
        pass

    def progress(self):
        return "Serve: DEPLOYING"

    def applications(self):
        reported = self._reports.pop(0)
        if not self._reports:
            refuse(self._log)
        return reported

    def failure(self):
        return None


def refuse(log):
    with log.open("a") as stream:
        stream.write(f"ERROR 2026-11-26 08:00:00,000 ensemble_Ingress abc -- {REFUSED}: why\n")


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A server that has refused a configuration, and refuses the next; the configuration's file."""
    log = tmp_path / "logs" / "serve" / "replica.log"
    log.parent.mkdir(parents=True)
    refuse(log)
    monkeypatch.setattr(os, "environ", {**os.environ, module.DASHBOARD: "x", module.SESSION: str(tmp_path)})
    monkeypatch.setattr(module, "ServeApi", lambda dashboard: Api(log))
    monkeypatch.setattr(module, "LOOK_EVERY_S", 0.0)
    monkeypatch.setattr(module.configuration, "Checks", lambda *_: NoChecks())
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump({"applications": [APPLICATION]}))
    return file


class NoChecks:
    """Checks that find nothing."""

    def wait_for_arguments(self):
        pass

    def wait(self):
        pass


def test_a_refusal_that_is_the_same_as_before_is_reported(server):
    with pytest.raises(ScriptError, match="why"):
        deploy(server)


def test_what_other_machines_reach_keeps_its_keys(server, monkeypatch):
    monkeypatch.setitem(os.environ, module.SERVER, '{"host": "0.0.0.0"}')
    with pytest.raises(ScriptError, match="requires no key"):
        deploy(server)
    # It was started so.
    monkeypatch.setitem(os.environ, module.SERVER, '{"host": "0.0.0.0", "without_keys": true}')
    with pytest.raises(ScriptError, match="why"):
        deploy(server)


def test_a_server_that_has_ended_is_named(server, monkeypatch):
    with subprocess.Popen(["sleep", "60"]) as process:
        marked = mark(psutil.Process(process.pid))
        monkeypatch.setitem(os.environ, module.SERVER, f'{{"mark": "{marked}"}}')
        module.Running(marked).check()
        process.kill()
    with pytest.raises(ScriptError, match="the server has ended"):
        deploy(server)
