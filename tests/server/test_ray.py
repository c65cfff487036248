"""With a Ray that has only its public interface, the server takes the documented way, and says so once."""

import os

import pytest

from deployments.ray_internals import compatibility
from tests.levels import level
from tests.server.server import Server, config, eventually, post

# Each process of Python runs it when it starts.
SITE = """
import pkgutil
resolve_name = pkgutil.resolve_name

def missing(name):
    if name.partition(":")[0].partition(".")[0] == "ray":
        raise AttributeError(name)
    return resolve_name(name)

pkgutil.resolve_name = missing
"""
WARNED = (
    compatibility.FORKS,
    compatibility.SERVE_INTERFACE,
    compatibility.START_HOOK,
    compatibility.WORKER_HOOK,
    compatibility.AGENT,
    compatibility.SERVE_CLIENT,
)


@pytest.fixture
def without_internals(tmp_path, monkeypatch):
    """Whatever Python starts meanwhile finds nothing in Ray that is not its public interface."""
    (tmp_path / "sitecustomize.py").write_text(SITE)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))


def test_without_rays_internals_it_answers_and_warns_once_of_each(repository, without_internals):
    # Ray gives each process of its dashboard 30 s, which are too few beside other tests.
    patience = {"RAY_DASHBOARD_SUBPROCESS_MODULE_WAIT_READY_TIMEOUT": "120", "RAY_DASHBOARD_STARTUP_TIMEOUT_S": "180"}
    with Server(config(repository, "separate"), **patience) as server:
        assert post(server, level(10)).status_code == 200
        log = server.log()
        assert {each.instead: log.count(each.instead) for each in WARNED} == {each.instead: 1 for each in WARNED}
        # By Ray's whole dashboard.
        server.reconfigure({"top_k": 2}, "Labeler")
        assert eventually(lambda: len(post(server, level(10)).json().get("top", [])) == 2)
