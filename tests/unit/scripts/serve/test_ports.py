import socket

import pytest

from scripts.errors import ScriptError
from scripts.serve.ports import Port, check_ports, wanted


def test_a_port_in_use_is_told_with_what_moves_it():
    with socket.create_server(("127.0.0.1", 0)) as busy:
        number = busy.getsockname()[1]
        with pytest.raises(ScriptError, match=rf"127\.0\.0\.1:{number} .*choose another port by http_options\.port"):
            check_ports(Port("127.0.0.1", number, "http_options.port"))
        # Who listens on one address is in the way of who listens on all.
        with pytest.raises(ScriptError, match="RAY_X"):
            check_ports(Port("0.0.0.0", number, "RAY_X"))
    check_ports(Port("127.0.0.1", number))


def test_the_ports_of_a_configuration(monkeypatch):
    monkeypatch.setenv("RAY_SERVE_ENABLE_HA_PROXY", "1")
    monkeypatch.setenv("RAY_SERVE_HAPROXY_STATS_PORT", "7")
    config = {"http_options": {"host": "10.0.0.1", "port": 5}, "grpc_options": {}}
    assert [(port.host, port.number) for port in wanted(config)] == [
        ("10.0.0.1", 5),
        ("10.0.0.1", 9000),
        ("0.0.0.0", 7),
        ("0.0.0.0", 9101),
        ("0.0.0.0", 8500),
        ("0.0.0.0", 9500),
    ]
    monkeypatch.setenv("RAY_SERVE_ENABLE_HA_PROXY", "0")
    assert [port.number for port in wanted({})] == [8000, 9000]
