import os
import shutil
import socket
import subprocess
import sys

import pytest

from deployments.contract.hosts import RAY_METRICS_SETTING
from scripts.errors import ScriptError
from scripts.serve.ports import METRICS_SETTING, Port, check_loopback, check_ports, move, wanted


def test_every_port_in_use_is_named_with_what_moves_it():
    with socket.create_server(("127.0.0.1", 0)) as busy, socket.create_server(("127.0.0.1", 0)) as other:
        number, another = (each.getsockname()[1] for each in (busy, other))
        named = rf"127\.0\.0\.1:{number} \(http_options\.port\) .*127\.0\.0\.1:{another} .*ensemble serve --ports-from"
        with pytest.raises(ScriptError, match=named):
            check_ports(Port("127.0.0.1", number, "http_options.port"), Port("127.0.0.1", another, "grpc"))
        # Who listens on one address is in the way of who listens on all.
        with pytest.raises(ScriptError, match="RAY_X"):
            check_ports(Port("0.0.0.0", number, "RAY_X"))
    check_ports(Port("127.0.0.1", number))


@pytest.mark.parametrize("host", ["192.0.2.1", "no.such.host.invalid"])
def test_a_host_that_is_not_here_is_named(host):
    with pytest.raises(ScriptError, match=rf"^{host} is no address of this machine: .*\. Correct http_options\.host"):
        check_ports(Port(host, 8000, "http_options.port"))


def test_an_address_of_ipv6_is_probed_as_one_and_has_brackets():
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as busy:
        number = busy.getsockname()[1]
        with pytest.raises(ScriptError, match=rf"^\[::1\]:{number} \(http_options\.port\) can't be listened on"):
            check_ports(Port("::1", number, "http_options.port"))
        with pytest.raises(ScriptError, match=rf"^\[::\]:{number} can't"):
            check_ports(Port("::", number))
    check_ports(Port("::1", number), Port("::", number))


@pytest.mark.skipif(os.getuid() != 0 or shutil.which("unshare") is None, reason="needs a network namespace")
def test_a_machine_without_loopback_is_named_at_once():
    check_loopback()
    code = "from scripts.serve.ports import check_loopback; check_loopback()"
    done = subprocess.run(["unshare", "--net", sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert "this machine can't connect to itself at 127.0.0.1: " in done.stderr.splitlines()[-1]
    assert "`ip link set lo up`" in done.stderr


def test_four_ports_in_a_row(monkeypatch):
    monkeypatch.setattr(os, "environ", {METRICS_SETTING: "7", RAY_METRICS_SETTING: "8"})
    config = {"http_options": {"host": "10.0.0.1", "port": 5}, "grpc_options": {"grpc_servicer_functions": ["a"]}}
    move(config, 9000)
    assert [port.number for port in wanted(config)] == [9000, 9001, 9002, 9003]
    assert config["http_options"]["host"] == "10.0.0.1"
    assert config["grpc_options"]["grpc_servicer_functions"] == ["a"]


@pytest.mark.parametrize("first", [0, 65533])
def test_four_ports_that_there_are_not(first):
    with pytest.raises(ScriptError, match=f"--ports-from {first}: "):
        move({}, first)


@pytest.mark.parametrize("number", ["8000", 65536, 0, -1, None])
def test_what_is_no_port(number):
    with pytest.raises(ScriptError, match=rf"http_options\.port is {number!r}\. A port is a number"):
        check_ports(Port("127.0.0.1", number, "http_options.port"))


def test_the_ports_of_a_configuration(monkeypatch):
    monkeypatch.setenv(METRICS_SETTING, "7")
    monkeypatch.setenv(RAY_METRICS_SETTING, "8")
    config = {"http_options": {"host": "10.0.0.1", "port": 5}, "grpc_options": {}}
    ports = wanted(config)
    own = [("127.0.0.1", 7), ("127.0.0.1", 8)]
    assert [(port.host, port.number) for port in ports] == [("10.0.0.1", 5), ("10.0.0.1", 9000), *own]
    monkeypatch.delenv(METRICS_SETTING)
    monkeypatch.delenv(RAY_METRICS_SETTING)
    assert [port.number for port in wanted({"http_options": None})] == [8000, 9000, 9101, 9102]


@pytest.mark.parametrize("setting", [METRICS_SETTING, RAY_METRICS_SETTING])
def test_a_variable_that_is_no_port_is_named(monkeypatch, setting):
    monkeypatch.setenv(setting, "many")
    with pytest.raises(ScriptError, match=f"^{setting} is 'many'. A port is a number"):
        check_ports(*wanted({}))
