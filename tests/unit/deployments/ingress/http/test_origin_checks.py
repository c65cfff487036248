"""Requests that a web page makes a browser send, to every path there is."""

from dataclasses import replace

import pytest

from deployments.ingress.http.server import HttpServer
from deployments.ingress.protocol import Served, Serves
from ensemble_features.feedback.labels import routes
from ensemble_features.page.feature import Page
from tests.door import NO_LOADING, WITHOUT, Door

HOST = "127.0.0.1:8000"
FOREIGN = {"Host": HOST, "Origin": "https://evil.example"}


async def takes_label(request_id, label, index, key):
    return None


class TakesLabels(Serves):
    def serve(self, service):
        return Served(routes(service.ingress, takes_label))


def door(is_local=True, **settings):
    made = Door(**settings)
    features = [NO_LOADING, TakesLabels(), Page(*WITHOUT)]
    made.service = replace(made.service, is_local=is_local, features=features)
    made._http = HttpServer(made.service)
    return made


def status(made, path, headers, method="POST"):
    return made.answer(path, b"", [(k, v.encode()) for k, v in headers.items()], method=method).status_code


POSTS = sorted({path for path, route in door()._http._routes.items() if route.method == "POST"})
GETS = sorted({path for path, route in door()._http._routes.items() if route.method == "GET"})


def test_the_paths_that_change_something_are_among_them():
    assert {"/feedback", "/classify", "/v2/models/ensemble/infer"} < set(POSTS)
    assert {"/", "/stats", "/docs"} < set(GETS)
    assert any("unregister" in path for path in POSTS)


@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:8888"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site", "Origin": f"http://{HOST}.evil.example"},
    ],
)
def test_no_path_that_may_change_something_takes_a_request_of_a_page_elsewhere(path, headers):
    made = door(hosts=["*"])
    answer = made.answer(path, b"", [(k, v.encode()) for k, v in {"Host": HOST, **headers}.items()])
    assert answer.status_code == 403
    assert b"ingress.origins" in answer.body


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": HOST},
        {},
        {"Host": HOST, "Origin": f"http://{HOST}", "Sec-Fetch-Site": "same-origin"},
        # Without Sec-Fetch-Site, which browsers leave out where there is no TLS.
        {"Host": "Pictures.example", "Origin": "https://pictures.example"},
        # A proxy that ends TLS and changes the host.
        {"Host": HOST, "Origin": "https://pictures.example", "Sec-Fetch-Site": "same-origin"},
        # A page of a host that the configuration lists.
        {"Host": HOST, "Origin": "https://app.partner.example:8443", "Sec-Fetch-Site": "cross-site"},
    ],
)
def test_the_servers_own_pages_and_who_is_no_browser_may(headers):
    label = b'{"request_id": "a", "label": "cat"}'
    made = door(hosts=["pictures.example", ".partner.example"])
    status, answer = made.ask("/feedback", label, [(k, v.encode()) for k, v in headers.items()])
    assert (status, answer) == (200, {"accepted": 1})


@pytest.mark.parametrize("path", GETS)
def test_a_page_elsewhere_may_link_to_what_changes_nothing(path):
    assert status(door(), path, FOREIGN, "GET") not in (403, 421)


@pytest.mark.parametrize(("method", "path"), [*(("GET", path) for path in GETS), *(("POST", path) for path in POSTS)])
@pytest.mark.parametrize("host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "localhost.evil", ""])
def test_on_loopback_no_path_answers_for_a_strange_host(method, path, host):
    assert status(door(), path, {"Host": host}, method) == 421


def test_the_refusal_of_a_strange_host_has_a_hint_that_works():
    code, answer = door().ask("/feedback", b"", [("Host", b"pictures.example")])
    assert (code, answer["error"]["code"]) == (421, "misdirected_request")
    assert "ingress.hosts" in answer["error"]["message"]
    assert status(door(hosts=["pictures.example"]), "/stats", {"Host": "pictures.example:8000"}, "GET") == 200
    assert status(door(), "/stats", {"Host": "localhost:8000"}, "GET") == 200


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST.:8000", "a.localhost:1", "127.0.0.1", "[::1]:8000", "10.0.0.7:80"]
)
def test_loopbacks_names_and_every_address_are_answered(host):
    assert status(door(), "/stats", {"Host": host}, "GET") == 200


@pytest.mark.parametrize(
    ("is_local", "hosts", "host", "expected"),
    [
        (False, None, "pictures.example", 200),
        (False, ["pictures.example"], "evil.example", 421),
        (True, ["*"], "evil.example", 200),
        (True, [".example"], "a.b.EXAMPLE", 200),
        (True, [".example"], "badexample", 421),
        (True, [], "pictures.example", 421),
    ],
)
def test_the_list_holds_wherever_the_server_listens(is_local, hosts, host, expected):
    assert status(door(is_local, hosts=hosts), "/stats", {"Host": host}, "GET") == expected
