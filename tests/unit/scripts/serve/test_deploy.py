import os

import pytest
import yaml

from graph.names import REFUSED
from scripts.configuration import IMPORT_PATH
from scripts.errors import ScriptError
from scripts.serve import deploy as module
from scripts.serve.deploy import deploy, is_in_force

APPLICATION = {"name": "ensemble", "import_path": IMPORT_PATH, "args": {}}


def test_what_serve_does_not_report_is_not_in_force():
    config, runs, starts = {"applications": [APPLICATION]}, {"status": "RUNNING"}, {"status": "DEPLOYING"}
    assert is_in_force(config, [runs])
    assert not is_in_force(config, [runs, starts])
    assert not is_in_force(config, [])
    assert is_in_force({"applications": []}, [])


class Api:
    """Serve's REST interface, whose replicas log a refusal of what is deployed; its first report does not come."""

    def __init__(self, log):
        self._log, self._reports = log, [[], [{"status": "DEPLOYING"}], [{"status": "RUNNING"}]]

    def deploy(self, config):
        pass

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
    monkeypatch.setattr(module.configuration, "Checks", lambda config: NoChecks())
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
    monkeypatch.setitem(os.environ, module.HOST, "0.0.0.0")
    with pytest.raises(ScriptError, match="requires no key"):
        deploy(server)
    # It was started so.
    monkeypatch.setitem(os.environ, module.WITHOUT_KEYS, "yes")
    with pytest.raises(ScriptError, match="why"):
        deploy(server)
