"""Fixtures for all tests."""

import os
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

import hypothesis
import pytest

from deployments import entry_points
from scripts.serve.environment import TOKEN_FILE
from tests.networks import brightness, constant, one_hot, store

# What a driver of a server under `make serve` needs; Ray reads it when it is imported, so it is set before any test is.
os.environ.setdefault("RAY_AUTH_MODE", "token")
os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
os.environ.setdefault("RAY_AUTH_TOKEN_PATH", str(TOKEN_FILE))

# The same examples each time, so that a test that fails does so for everyone; how long one takes says nothing.
hypothesis.settings.register_profile("same", derandomize=True, database=None, deadline=None)
hypothesis.settings.load_profile("same")

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def repository(tmp_path_factory):
    """A repository of three members: two that always answer the same, each its own class, and one that looks."""
    root = tmp_path_factory.mktemp("repository")
    store(root, "one", constant(one_hot(1)))
    # Of another size, so that the transformer makes two sets of pixels.
    store(root, "six", constant(one_hot(6), size=48))
    store(root, "brightness", brightness())
    return root


@pytest.fixture
def without_plugins(monkeypatch):
    """As where no distribution of packages/plugins is installed."""
    server = metadata.distribution(entry_points.SERVER).entry_points
    monkeypatch.setattr(entry_points, "entry_points", server.select)
    monkeypatch.setattr(entry_points, "_is_installed", lambda name: name in {"ensemble-models", "ensemble-capacity"})
    with read_anew():
        yield


@contextmanager
def read_anew():
    """Let this process read the entry points, and read them once more afterwards."""
    for cached in (entry_points._installed, entry_points.find):
        cached.cache_clear()
    yield
    for cached in (entry_points._installed, entry_points.find):
        cached.cache_clear()


@pytest.fixture
def needs_root():
    """Fails a test that makes another user's files where only root could."""
    assert os.getuid() == 0, "this test makes files of another user: run it as root"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Of several processes that test, one has all tests of a file, or of a folder whose tests share servers."""
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            file = nodeid.partition("::")[0].split("/")
            shares = file[:2] in (["tests", "core"], ["tests", "server"], ["packages", "plugins"])
            return "/".join(file[:3] if shares else file)

    return Scheduling(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session):
    """What was left untested counts as failed, so that `--last-failed` tests it: a process that tests has died."""
    plugins = session.config.pluginmanager
    distributed, failures = plugins.get_plugin("dsession"), plugins.get_plugin("lfplugin")
    if distributed is None or distributed.sched is None or failures is None:
        return
    given = (distributed.sched.workqueue, *distributed.sched.assigned_work.values())
    for tests in (tests for scopes in given for tests in scopes.values()):
        failures.lastfailed.update({test: True for test, done in tests.items() if not done})
