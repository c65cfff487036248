"""Servers that the tests of this folder share: every node separate, by either edge, or inline."""

import pytest
from ray import serve

from tests.server.server import Server, config


@pytest.fixture(
    scope="package", params=[("separate", "direct"), ("separate", "handle"), ("inline", "direct")], ids="-".join
)
def server(request, repository):
    placement, edges = request.param
    with Server(config(repository, placement, edges=edges)) as running:
        yield running


@pytest.fixture(scope="package")
def handle(server):
    """A handle to the application; one a server, because the threads that Serve starts for it outlive a driver."""
    with server.driver():
        yield serve.get_app_handle("ensemble")
