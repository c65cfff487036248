import json
from dataclasses import replace

import pytest

from deployments.ingress.http.server import HttpServer
from deployments.ingress.open_inference.catalog import Catalog
from ensemble_features.loading.feature import Loading
from packages.plugins.features.tests.loading.test_loading import Served
from tests.door import Door

LOAD = "/v2/repository/models/one/load"
UNLOAD = "/v2/repository/models/one/unload"
VERSION_2 = json.dumps({"parameters": {"version": 2}}).encode()


@pytest.fixture
def served():
    return Served()


class Feature(Loading):
    """The feature as it is when the ingress stands."""

    def __init__(self, served):
        self._gates, self._control = served.gates, served.control


@pytest.fixture
def door(served):
    made = Door()
    made.service = replace(
        made.service,
        features=[Feature(served)],
        members=served.members,
        versions=served.versions,
        left_out=served.left_out,
        labels=("a", "b"),
    )
    made._http = HttpServer(made.service)
    return made


@pytest.mark.parametrize("path", [LOAD, UNLOAD])
def test_it_is_off_unless_somebody_may(path):
    door = Door()
    status, answer = door.ask(path)
    assert (status, answer["error"]) == (
        404,
        "not_found: loading and unloading is off; access.operators turns it on",
    )
    assert "model_repository" not in Catalog(door.service).server.extensions


def test_load_and_unload_are_told_everywhere(door, served):
    catalog = Catalog(door.service)
    assert "model_repository" in catalog.server.extensions
    assert door.ask(LOAD, VERSION_2) == (200, {})
    assert served.changes[-1].version == 2
    assert catalog.find("one", "2").metadata.versions == ["2"]
    assert door.ask(UNLOAD, b'{"parameters": {"unload_dependents": false}}') == (200, {})
    assert not catalog.is_ready("one")
    assert catalog.is_ready("ensemble")
    states = {entry.name: (entry.version, entry.state, entry.reason) for entry in catalog.index()}
    assert states["one"] == ("2", "UNAVAILABLE", "unloaded")
    assert states["ensemble"] == ("1", "READY", "")
    assert "one" not in {entry.name for entry in catalog.index(ready=True)}
    assert door.ask(LOAD) == (200, {})
    assert catalog.is_ready("one")


@pytest.mark.parametrize(
    ("path", "body", "headers", "status"),
    [
        ("/v2/repository/models/ensemble/load", b"", {}, 422),
        ("/v2/repository/models/nothing/unload", b"", {}, 404),
        (LOAD, b"[]", {}, 422),
        (LOAD, b'{"parameters": []}', {}, 422),
        (LOAD, b'{"parameters": {"file:x": "y"}}', {}, 422),
        (UNLOAD, VERSION_2, {}, 422),
        (LOAD, b" " * 65_537, {}, 413),
        (LOAD, VERSION_2, {"Origin": b"http://elsewhere.example"}, 403),
    ],
)
def test_bad_requests_change_nothing(door, served, path, body, headers, status):
    answered, answer = door.ask(path, body, headers.items())
    assert (answered, set(answer)) == (status, {"error"})
    assert not served.changes


def test_who_may_not_is_told_so(door):
    other = Served(("ops",))
    door.service = replace(door.service, features=[Feature(other)], left_out=other.left_out)
    door._http = HttpServer(door.service)
    status, answer = door.ask(LOAD, VERSION_2)
    assert (status, answer["error"].partition(":")[0]) == (403, "forbidden")
    assert not other.changes
