"""What people look at, on one server: the models in the box, every node separate or inline, traces in a real Jaeger."""

import pytest
from ray import serve

from models.repository import DEFAULT_ROOT
from tests.conftest import ROOT
from tests.server.seen.jaeger import POSSIBLE, Jaeger
from tests.server.server import Server, config

MEMBERS = ("resnet", "densenet")
CAT = (ROOT / "tests" / "cat.jpg").read_bytes()


@pytest.fixture(scope="package")
def jaeger(tmp_path_factory):
    """A Jaeger; None where there is none and no Go to build it with."""
    if not POSSIBLE:
        yield None
        return
    running = Jaeger(tmp_path_factory.mktemp("jaeger") / "log").start()
    yield running
    running.kill()


@pytest.fixture(scope="package", params=["separate", "inline"])
def server(request, jaeger):
    page, environment = {}, {}
    if jaeger is not None:
        page = {"jaeger_url": jaeger.url}
        environment = {
            "OTEL_TRACES_EXPORTER": "otlp",
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{jaeger.otlp_grpc}",
            "OTEL_BSP_SCHEDULE_DELAY": "200",
        }
    with Server(config(DEFAULT_ROOT, request.param, members=MEMBERS, page=page), **environment) as running:
        yield running


@pytest.fixture(scope="package")
def handle(server):
    with server.driver():
        yield serve.get_app_handle("ensemble")
