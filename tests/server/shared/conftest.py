"""Servers that the tests of this folder share: every node separate, by either edge and front, or inline."""

import pytest
from ray import serve

from tests.conftest import ROOT
from tests.environments import environment
from tests.levels import level
from tests.server.server import Server, config
from tests.server.shared.servers import SERVERS

HERE = ROOT / "tests" / "server" / "shared"


@pytest.fixture(scope="package", params=SERVERS, ids="-".join)
def server(request, repository):
    placement, edges, front = request.param
    ingress = {"shared_memory_prefix": "es-test"}
    with Server(config(repository, placement, edges=edges, front=front, ingress=ingress, feedback={})) as running:
        yield running


@pytest.fixture(scope="session")
def pythons():
    """Gives the Python of a client's environment: its protobuf, or something else that it wants, is not Ray's."""

    def python(name):
        lock = f"requirements-{name}.lock"
        # Some are those of servers that members may be on, too.
        return environment(name, HERE / lock if (HERE / lock).exists() else HERE.parent / "remote" / lock)

    return python


@pytest.fixture
def picture(tmp_path):
    path = tmp_path / "picture"
    path.write_bytes(level(250))
    return path


@pytest.fixture(scope="package")
def handle(server):
    """A handle to the application; one a server, because the threads that Serve starts for it outlive a driver."""
    with server.driver():
        yield serve.get_app_handle("ensemble")
