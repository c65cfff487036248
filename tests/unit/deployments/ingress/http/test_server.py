"""What of a request its trace is told."""

import json
from contextlib import contextmanager
from dataclasses import replace
from unittest.mock import Mock

import pytest

from deployments.contract.errors import ConfigurationError
from deployments.contract.hosts import HOST_ADDRESS, RAY_METRICS_SETTING
from deployments.ingress.classify import Classify
from deployments.ingress.http.server import FORWARDED_PROTOCOL, HttpServer
from deployments.ingress.pacing import RejectionPacer
from deployments.ingress.protocol import Protocol
from deployments.ingress.routes import Route, plain
from tests.door import OBSERVER, Door


@pytest.mark.parametrize(
    ("path", "route"),
    [
        ("/classify", "/classify"),
        ("/v2/models/ensemble/infer", "/v2/models/ensemble/infer"),
        ("/v2/models/ensemble/versions/1/infer", "/v2/models/ensemble/versions/{version}/infer"),
    ],
)
def test_a_traces_route_is_the_template_not_the_path(path, route, observed):
    Door().ask(path, b"{}", [("content-type", b"application/json")])
    assert [(known["http.route"], known["url.path"]) for known in observed] == [(route, path)]


def test_a_traces_scheme_is_what_the_client_spoke(observed):
    for forwarded in ([], [(FORWARDED_PROTOCOL, b"https")], [(FORWARDED_PROTOCOL, b"gopher")]):
        Door().ask("/classify", b"{}", [("content-type", b"application/json"), *forwarded])
    assert [known["url.scheme"] for known in observed] == ["http", "https", "http"]


@pytest.fixture
def observed(monkeypatch):
    """What each call that is traced is known by."""
    calls, call = [], OBSERVER.call

    @contextmanager
    def spied(protocol, carrier, known):
        calls.append(known)
        with call(protocol, carrier, known) as made:
            yield made

    monkeypatch.setattr(OBSERVER, "call", spied)
    return calls


LARGE = 2**21
FULL = {"max_in_flight_bytes": LARGE, "max_request_bytes": LARGE}


@pytest.fixture
def held(monkeypatch):
    """A list with an entry for each refusal that waits for its turn."""
    found = []

    async def hold(refusals):
        found.append(refusals)

    monkeypatch.setattr(RejectionPacer, "hold", hold)
    return found


@pytest.mark.parametrize(
    ("path", "size", "body", "settings", "status", "waits"),
    [
        ("/v2/models/ensemble/infer", LARGE, b"[" * LARGE, {}, 422, True),
        ("/v2/models/ensemble/infer", 2**40, b"", {}, 413, True),
        ("/v2/models/ensemble/infer", 100, b"[" * 100, {}, 422, False),
        ("/nowhere", LARGE, b"", {}, 404, True),
        ("/classify", LARGE, bytes(LARGE), {}, 200, False),
        # As long as a front that keeps a header as it is lets through.
        ("/classify", f"{3:05000}", b"abc", {}, 200, False),
        ("/nowhere", f"{LARGE:05000}", b"", {}, 404, True),
        # What was read to its end leaves nothing.
        ("/v2/models/ensemble/infer", LARGE, b" " * LARGE, {}, 422, False),
        # One that is to come again is held back elsewhere.
        ("/classify", LARGE, bytes(LARGE), FULL, 503, False),
    ],
)
@pytest.mark.parametrize("alone", [False, True])
def test_the_rest_of_a_large_body_that_is_refused_for_good_is_not_read_and_refusals_of_it_leave_at_a_pace(
    path, size, body, settings, status, waits, alone, held
):
    door = Door(**settings)
    # Of another request, as far as these settings notice it.
    door.service.ingress.admission.size = 1
    response = door.answer(path, body, [("Content-Length", str(size).encode())], chunk=2**16, alone=alone)
    assert response.status_code == status
    # Where Serve takes in all of it, it would come while the refusal waits.
    assert len(held) == (waits and alone)


def test_who_has_left_or_has_sent_all_takes_no_turn(held):
    headers = [("Transfer-Encoding", b"chunked")]
    assert Door().answer("/classify", b"a part", headers, leaves=True, alone=True).status_code == 499
    # What has come whole leaves none behind.
    assert Door().answer("/v2/models/ensemble/infer", b"[" * 10, headers, alone=True).status_code == 422
    assert held == []
    assert Door().answer("/nowhere", b"a part", headers, leaves=True, alone=True).status_code == 404
    assert len(held) == 1


@pytest.mark.parametrize(
    ("environment", "told"),
    [
        ({RAY_METRICS_SETTING: "9102"}, "http://127.0.0.1:9102/metrics of the server's machine"),
        ({RAY_METRICS_SETTING: "9102", HOST_ADDRESS: "10.0.0.2"}, "http://10.0.0.2:9102/metrics"),
        ({}, "prom_metrics_service_discovery.json"),
    ],
)
def test_the_404_of_metrics_names_where_they_are(environment, told, monkeypatch):
    for name in (RAY_METRICS_SETTING, HOST_ADDRESS):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    response = Door().answer("/metrics", b"", [])
    assert response.status_code == 404
    message = json.loads(response.body)["error"]["message"]
    assert told in message
    assert message.endswith(told) or not environment


def test_a_name_in_a_path_is_that_name_and_no_pattern():
    class Named(Protocol):
        def routes(self, service):
            async def answer(request, call):
                return plain(request.path_params)

            return {"/net.1/{rest}": Route("GET", answer, "")}

    door = Door()
    door._http = HttpServer(replace(door.service, protocols=[Named()]))
    assert door.ask("/net.1/a%41", method="GET") == (200, {"rest": "a%41"})
    assert door.ask("/net-1/infer", method="GET")[0] == 404


def test_two_protocols_with_one_path_are_refused():
    with pytest.raises(ConfigurationError, match="two protocols or features bring /classify"):
        HttpServer(replace(Door().service, protocols=[Classify(), Classify()]))


@pytest.mark.parametrize("path", ["/nothing", "/v1/models/ensemble:predict", "/api/v1.0/predictions", "/", "/metrics"])
def test_an_unknown_path_reads_no_metadata_of_packages(path, without_plugins, monkeypatch):
    """To read it takes a hundred milliseconds of the event loop, and anyone may ask for a path."""
    door = Door()
    opened = Mock(side_effect=AssertionError("a request made the server read metadata"))
    monkeypatch.setattr("importlib.metadata.Distribution.discover", opened)
    monkeypatch.setattr("importlib.metadata.MetadataPathFinder.find_distributions", opened)
    status, told = door.ask(path, method="GET")
    assert (status, f"there is no {path}" in json.dumps(told)) == (404, True)
    opened.assert_not_called()


@pytest.mark.parametrize("name", ["Authorization", "Content-Type", "Inference-Header-Content-Length"])
def test_what_decides_about_a_request_comes_once(name):
    """A proxy before the server may have looked at the other one."""
    door = Door()
    status, told = door.ask("/v2/models/ensemble/infer", b"{}", [(name, b"0"), (name.lower(), b"0")])
    assert (status, door.images) == (422, [])
    assert f"{name.lower()!r} comes 2 times" in told["error"]
    assert door.ask("/classify", b"x", [("Accept", b"a"), ("Accept", b"b")])[0] == 200
