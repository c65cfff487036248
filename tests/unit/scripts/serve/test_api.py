"""What is told of an application that can't be served."""

import pytest

from scripts.errors import ScriptError
from scripts.serve import api
from scripts.serve.api import ServeApi, explain
from tests.local_servers import HttpServer, Reply

TRACEBACK = """Traceback (most recent call last):
  File "replica.py", line 1, in build
ray.exceptions.RayTaskError(RuntimeError): ray::build()
RuntimeError: Traceback (most recent call last):
  File "app.py", line 2, in build
{error}

"""


def test_a_failure_is_told_without_its_traceback():
    failed = "Deploying app 'ensemble' failed with exception:\n"
    message = failed + TRACEBACK.format(error="ModuleNotFoundError: No module named 'x'")
    assert explain([message, ""]) == (
        "Deploying app 'ensemble' failed with exception: ModuleNotFoundError: No module named 'x'"
    )
    message = failed + TRACEBACK.format(error="deployments.contract.errors.ConfigurationError: members: none")
    assert explain(["", message]) == "members: none"
    assert explain(["A replica's constructor failed.", "it is unhealthy"]) == (
        "A replica's constructor failed.\nit is unhealthy"
    )


def test_who_does_not_answer_has_refused_nothing(monkeypatch):
    # The token's file is there once a server has started.
    monkeypatch.setenv("RAY_AUTH_TOKEN", "x")
    refuses = r"^Serve refuses the configuration: a bad field"
    with HttpServer(lambda asked: Reply(400, b"a bad field")) as server, pytest.raises(ScriptError, match=refuses):
        ServeApi(server.url).deploy({})
    monkeypatch.setattr(api, "START_TIMEOUT_S", 0.0)
    with pytest.raises(ScriptError, match=r"^no server answers at http://127\.0\.0\.1:9/?: .*; is it running"):
        ServeApi("http://127.0.0.1:9").deploy({})


def test_a_token_stays_with_the_server_that_was_asked(monkeypatch):
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "secret")
    with HttpServer() as other, HttpServer(lambda _: Reply(302, b"", {"Location": other.url})) as server:
        assert ServeApi(server.url).applications() == []
        assert (len(server.asked), other.asked) == (1, [])


@pytest.mark.parametrize("status", [200, 503])
def test_an_answer_that_breaks_off_is_no_answer(monkeypatch, status):
    monkeypatch.setenv("RAY_AUTH_TOKEN", "x")
    monkeypatch.setattr(api, "START_TIMEOUT_S", 0.0)
    broken = Reply(status, b"no chunk", {"Transfer-Encoding": "chunked"}, close=True)
    with (
        HttpServer(lambda _: broken) as server,
        pytest.raises(ScriptError, match=r"^no server answers.* can't be read"),
    ):
        ServeApi(server.url).deploy({})
