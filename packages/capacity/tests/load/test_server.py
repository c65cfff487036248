import json
import time

import psutil

from ensemble_capacity.load.machine import Processes
from ensemble_capacity.load.server import Server, stages_ms
from packages.capacity.tests.load.loads import target
from tests.local_servers import HttpServer, Reply


def statistics(count, ns, batches):
    parts = {name: {"count": count, "ns": ns} for name in ("queue", "compute_input", "compute_infer", "compute_output")}
    sizes = [{"batch_size": size, "compute_infer": {"count": number, "ns": 1}} for size, number in batches.items()]
    stats = {"inference_stats": {"success": {"count": count, "ns": 1}, **parts}, "batch_stats": sizes}
    return json.dumps({"model_stats": [stats]}).encode()


def test_what_the_server_and_the_machine_report_of_a_time():
    told = iter([statistics(10, 1_000_000, {1: 10}), statistics(30, 5_000_000, {1: 12, 8: 3})])

    def answer(asked):
        return Reply(body=next(told)) if asked.path == "/v2/models/m/stats" else Reply(404)

    with HttpServer(answer) as http:
        server = Server(target(http.url), "m")
        before = server.moment()
        # The system counts in ticks of 10 ms.
        end = time.process_time() + 0.1
        while time.process_time() < end:
            pass
        figures = server.between(before, server.moment())
    assert figures.parts_us == dict.fromkeys(("queue", "compute_input", "compute_infer", "compute_output"), 200)
    assert figures.batches == {1: 2, 8: 3}
    # The server is this process.
    assert sum(figures.cpu_s.values()) >= 0.04
    assert sum(figures.memory_mb.values()) > 10


def test_what_a_server_does_not_report_is_left_out():
    with HttpServer(lambda asked: Reply(404)) as http:
        server = Server(target(http.url), "m")
        figures = server.between(server.moment(), server.moment())
    assert (figures.parts_us, figures.batches) == ({}, {})


def test_statistics_of_several_replicas_are_not_taken_for_one():
    def answer(asked):
        if asked.path == "/stats":
            return Reply(body=json.dumps({"replicas": {"Ingress": {"RUNNING": 2}}}).encode())
        return Reply(body=statistics(len(http.asked), len(http.asked), {1: len(http.asked)}))

    with HttpServer(answer) as http:
        server = Server(target(http.url), "m")
        assert server.between(server.moment(), server.moment()).parts_us == {}


def test_a_server_of_another_user_is_not_taken_for_this_process(monkeypatch):
    with HttpServer() as http:
        [ours] = [each for each in psutil.net_connections("tcp") if each.laddr[1:] == (http.port,) and not each.raddr]
        monkeypatch.setattr(psutil, "net_connections", lambda kind: [ours._replace(pid=None)])
        assert Processes.of_port("127.0.0.1", http.port) is None


def test_a_server_elsewhere_has_no_processes_here():
    assert Processes.of_port("192.0.2.1", 80) is None
    assert Processes.of_port("127.0.0.1", 9) is None


def test_where_the_time_went_is_read_of_headers():
    headers = ["total;dur=10.0, queue;dur=2", 'total;dur=20.0, db;desc="a b";dur=1.5', "broken, x;dur=y"]
    assert stages_ms(headers) == {"total": 15.0, "queue": 2.0, "a b": 1.5}
    assert list(stages_ms(headers)) == ["total", "queue", "a b"]
