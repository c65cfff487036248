"""What of a request its trace is told."""

from contextlib import contextmanager

import pytest

from tests.door import OBSERVER, Door


@pytest.mark.parametrize(
    ("path", "route"),
    [
        ("/classify", "/classify"),
        ("/v2/models/ensemble/infer", "/v2/models/ensemble/infer"),
        ("/v2/models/ensemble/versions/1/infer", "/v2/models/ensemble/versions/{version}/infer"),
    ],
)
def test_a_traces_route_is_the_template_not_the_path(path, route, monkeypatch):
    calls, call = [], OBSERVER.call

    @contextmanager
    def spied(protocol, carrier, known):
        calls.append(known)
        with call(protocol, carrier, known) as made:
            yield made

    monkeypatch.setattr(OBSERVER, "call", spied)
    Door().ask(path, b"{}", [("content-type", b"application/json")])
    assert [(known["http.route"], known["url.path"]) for known in calls] == [(route, path)]
