import time

import psutil

from ensemble_capacity.load.machine import Processes
from tests.local_servers import HttpServer, Reply


def test_what_a_server_on_this_machine_uses():
    with HttpServer(lambda asked: Reply(404)) as http:
        usage = Processes.of(http.url)
        # The system counts in ticks of 10 ms.
        end = time.process_time() + 0.1
        while time.process_time() < end:
            pass
        figures = usage.figures()
    # The server is this process.
    assert sum(figures.cpu_s.values()) >= 0.04
    assert sum(figures.memory_mb.values()) > 10


def test_what_a_server_elsewhere_uses_is_not_known():
    figures = Processes.of("http://192.0.2.1").figures()
    assert (figures.cpu_s, figures.memory_mb) == ({}, {})


def test_a_server_of_another_user_is_not_taken_for_this_process(monkeypatch):
    with HttpServer() as http:
        [ours] = [each for each in psutil.net_connections("tcp") if each.laddr[1:] == (http.port,) and not each.raddr]
        monkeypatch.setattr(psutil, "net_connections", lambda kind: [ours._replace(pid=None)])
        assert Processes.of(http.url).memory_mb() == {}


def test_a_server_elsewhere_has_no_processes_here():
    assert Processes.of("http://192.0.2.1:80").memory_mb() == {}
    assert Processes.of("http://127.0.0.1:9").memory_mb() == {}
