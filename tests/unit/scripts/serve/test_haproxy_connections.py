"""How many connections a client may hold, and what becomes of the others' requests meanwhile."""

import resource
import select
import socket
from contextlib import ExitStack, contextmanager, suppress

import pytest

from scripts.serve import haproxy_config
from tests.server.server import eventually
from tests.unit.scripts.serve.test_haproxy import Front, answering, folder, get

__all__ = ["folder"]
REQUEST = b"GET /200 HTTP/1.1\r\nHost: x\r\n\r\n"


@contextmanager
def connections(fronted, sources):
    """A connection from each address of loopback, but for those that are reset as they are opened."""
    with ExitStack() as stack:
        opened = []
        for source in sources:
            with suppress(ConnectionResetError):
                connection = socket.create_connection(("127.0.0.1", fronted.http), 30, source_address=(source, 0))
                opened.append(stack.enter_context(connection))
        yield opened


def closed(held):
    """How many of the connections HAProxy has closed by now."""
    ended, _, _ = select.select(held, [], [], 0)
    return len(ended)


def ask(connection):
    """The answer's headers; nothing where the connection is closed."""
    try:
        connection.sendall(REQUEST)
        return connection.recv(4096)
    except ConnectionError:
        return b""


@pytest.fixture(autouse=True)
def patient(monkeypatch, tmp_path):
    """HAProxy waits a minute for a request, not seconds, in which a slow machine does not open all connections.

    A connection that is closed for its silence leaves its place to another one.
    """
    template = tmp_path / "haproxy.cfg"
    text = haproxy_config.TEMPLATE.read_text()
    assert "timeout http-request 5s" in text
    template.write_text(text.replace("timeout http-request 5s", "timeout http-request 60s"))
    monkeypatch.setattr(haproxy_config, "TEMPLATE", template)


@pytest.fixture
def files():
    """As many open files as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_client_is_answered_while_others_hold_thousands_of_idle_connections(folder, files):
    with (
        Front(folder) as fronted,
        answering(folder),
        connections(fronted, [f"127.0.1.{1 + number % 20}" for number in range(4300)]) as held,
    ):
        assert [ask(each)[:12] for each in held] == [b"HTTP/1.1 200"] * 4300
        assert get(fronted, "/200").status_code == 200


@pytest.fixture
def few(monkeypatch):
    """40 connections in all, 10 for each address."""
    monkeypatch.setattr(haproxy_config, "MOST_CONNECTIONS", 40)


def test_an_address_has_a_share_of_the_connections(folder, few):
    with Front(folder) as fronted, answering(folder), connections(fronted, ["127.0.0.2"] * 30) as held:
        # HAProxy has counted each of them before the first answer makes room for another one.
        assert eventually(lambda: 30 - len(held) + closed(held) >= 20)
        assert sum(bool(ask(each)) for each in held) == 10
        assert get(fronted, "/200").status_code == 200


def test_an_address_with_many_connections_keeps_none_for_a_next_request(folder, few):
    """As a load balancer from which all clients come: each of its requests is answered."""
    with Front(folder) as fronted, answering(folder), connections(fronted, ["127.0.0.2"] * 10) as held:
        answers = [ask(each).lower() for each in held]
        assert all(each.startswith(b"http/1.1 200") for each in answers)
        # Each connection that ends makes room for one that is kept.
        assert [b"connection: close" in each for each in answers] == [True] * 5 + [False] * 5
        assert get(fronted, "/200").status_code == 200


def test_idle_connections_of_many_addresses_take_half_of_all(folder, few):
    sources = [f"127.0.1.{1 + number // 4}" for number in range(36)]
    with Front(folder) as fronted, answering(folder), connections(fronted, sources) as held:
        answers = [ask(each).lower() for each in held]
        assert [b"connection: close" in each for each in answers] == [True] * 16 + [False] * 20
        assert get(fronted, "/200").status_code == 200


@pytest.mark.parametrize(("files", "most"), [(resource.RLIM_INFINITY, 8192), (10_000, 4744), (1024, 256)])
def test_the_connections_fit_the_limit_on_files(files, most, monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, files))
    assert haproxy_config.most_connections() == most
