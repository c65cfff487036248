"""Fixtures of the plugins' tests: a server that has every plugin."""

import pytest

from tests.conftest import repository  # noqa: F401
from tests.server.server import Server, config
from tests.server.shared.conftest import picture  # noqa: F401


@pytest.fixture(scope="session")
def server(repository):  # noqa: F811
    """Serve every plugin's protocol."""
    with Server(config(repository, "inline", ingress={"shared_memory_prefix": "es-test"}, feedback={})) as running:
        yield running
