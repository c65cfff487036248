"""Servers that the tests of this folder share: one with every node separate, one with every node inline."""

import os

import pytest

from tests.serving.server import Server, config


@pytest.fixture(scope="session", params=["separate", "inline"])
def server(request, repository):
    with Server(config(repository, request.param)) as running:
        yield running


@pytest.fixture
def handle(server):
    """A handle to the application, from a driver of its own."""
    import ray
    from ray import serve

    assert os.environ["RAY_AUTH_MODE"] == "token"
    ray.init(address="auto", logging_level="ERROR", log_to_driver=False)
    try:
        yield serve.get_app_handle("ensemble")
    finally:
        ray.shutdown()
