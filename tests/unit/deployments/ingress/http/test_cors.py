"""Web pages of listed origins read answers and headers; pages of other origins don't."""

import pytest
from pydantic import ValidationError

from deployments.ingress.settings import IngressSettings
from ensemble_serving.errors import Overloaded
from tests import pictures
from tests.door import Door

PAGE, EVIL = "https://app.example", "https://evil.example"
PATHS = ("/classify", "/v2/models/ensemble/infer", "/v1/models/ensemble:predict")
LISTED = {"one": [PAGE], "all": ["*"]}


def answer(door, method, path, origin=PAGE, body=b"", **headers):
    sent = {"Host": "127.0.0.1:8000", "Origin": origin, "Sec-Fetch-Site": "cross-site", **headers}
    pairs = [(name.replace("_", "-"), value.encode()) for name, value in sent.items()]
    return door.answer(path, body, pairs, method=method)


def asked(door, path, origin=PAGE):
    """The answer to the question that a browser sends before a request with a key."""
    more = {"Access_Control_Request_Method": "POST", "Access_Control_Request_Headers": "authorization,content-type"}
    return answer(door, "OPTIONS", path, origin, **more)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("origins", LISTED.values(), ids=LISTED)
def test_a_browser_that_asks_first_may_send_for_a_listed_page(path, origins):
    door = Door(origins=origins, max_in_flight=1)
    # Whoever asks first takes no place, and needs none.
    door.service.ingress.admission.images = 1
    response = asked(door, path)
    assert response.status_code == 204
    assert response.headers["access-control-allow-origin"] == (PAGE if PAGE in origins else "*")
    assert response.headers["access-control-allow-methods"] == "POST"
    assert response.headers["access-control-allow-headers"] == "authorization,content-type"


@pytest.mark.parametrize("origins", [[], [PAGE]], ids=["none", "another"])
@pytest.mark.parametrize("path", PATHS)
def test_a_page_elsewhere_is_refused_with_a_hint_that_works(path, origins):
    door = Door(origins=origins)
    for response in (asked(door, path, EVIL), answer(door, "POST", path, EVIL)):
        assert response.status_code == 403
        assert b"list the origin in ingress.origins" in response.body
        assert EVIL.encode() in response.body
        assert "access-control-allow-origin" not in response.headers
    assert asked(Door(origins=[EVIL]), path, EVIL).status_code == 204


def test_a_listed_page_reads_answers_errors_and_headers():
    door = Door(origins=[PAGE])
    ok, bad = (answer(door, "POST", "/classify", body=body, Content_Type=kind) for body, kind in CASES)
    door.service.ingress.admission.images = 256
    full = answer(door, "POST", "/classify", body=pictures.jpeg())
    unknown = answer(door, "GET", "/nothing")
    codes = [each.status_code for each in (ok, bad, full, unknown)]
    assert codes == [200, 415, Overloaded.http_status, 404]
    for response in (ok, bad, full, unknown):
        assert response.headers["access-control-allow-origin"] == PAGE
        assert response.headers["vary"] == "Origin"
        exposed = response.headers["access-control-expose-headers"].lower()
        assert {"x-request-id", "retry-after", "server-timing"} <= set(exposed.split(", "))


CASES = ((pictures.jpeg(), "image/jpeg"), (b"{}", "application/json"))


def test_what_other_pages_get_is_not_for_them_to_read():
    response = answer(Door(origins=[PAGE]), "GET", "/v2/health/live", EVIL)
    assert response.status_code == 200
    assert "access-control-allow-origin" not in response.headers
    assert response.headers["vary"] == "Origin"
    assert not {"vary", "access-control-allow-origin"} & set(answer(Door(), "GET", "/v2/health/live").headers)


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("https://App.Example", "https://app.example"),
        ("https://app.example:443", "https://app.example"),
        ("http://app.example:80", "http://app.example"),
        ("http://localhost:3000", "http://localhost:3000"),
        ("http://[::1]:3000", "http://[::1]:3000"),
        ("*", "*"),
    ],
)
def test_an_origin_is_compared_as_browsers_send_it(given, kept):
    assert IngressSettings(origins=[given]).origins == (kept,)


@pytest.mark.parametrize("given", ["app.example", "https://app.example/", "https://*.example", "ftp://a", "null", ""])
def test_what_no_browser_sends_as_an_origin_is_refused(given):
    with pytest.raises(ValidationError):
        IngressSettings(origins=[given])
