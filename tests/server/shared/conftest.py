"""Servers that the tests of this folder share: one with every node separate, one with every node inline."""

import pytest
from ray import serve

from tests.server.server import Server, config


@pytest.fixture(scope="package", params=["separate", "inline"])
def server(request, repository):
    with Server(config(repository, request.param)) as running:
        yield running


@pytest.fixture(scope="package")
def handle(server):
    """A handle to the application; one a server, because the threads that Serve starts for it outlive a driver."""
    with server.driver():
        yield serve.get_app_handle("ensemble")
