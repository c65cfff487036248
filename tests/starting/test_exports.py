"""Where a real server's traces go: out at the end, nowhere without a collector, into a file."""

import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests import pictures
from tests.conftest import ROOT
from tests.serving.server import Server, config, eventually, post
from tests.starting.receiver import Receiver


def test_what_waits_is_exported_at_shutdown(repository):
    with Receiver() as receiver:
        environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.grpc_url, "OTEL_BSP_SCHEDULE_DELAY": "600000"}
        with Server(config(repository, "inline"), **environment) as server:
            trace_id = post(server, pictures.jpeg(40, 60)).json()["trace_id"]
            assert receiver.spans == []
        assert len(receiver.trace(trace_id)) == 9


def test_without_a_collector_the_service_goes_on_and_says_so_once(repository):
    started = time.time()
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_BSP_SCHEDULE_DELAY": "100"}
    server = Server(config(repository, "inline"), **environment)
    with server:

        def told():
            logs = [p for p in Path("/tmp/ray").glob("session_2*/logs/serve/*") if p.stat().st_mtime > started]
            return [line for p in logs for line in p.read_text().splitlines() if "spans" in line]

        def requests_go_on():
            assert post(server, pictures.jpeg()).status_code == 200
            return told()

        assert eventually(requests_go_on)
        for _ in range(20):
            requests_go_on()
            time.sleep(0.2)
        [line] = told()
        assert "can't be exported to otlp" in line
    # What waits is given up after a while; the rest of the time is Ray's own.
    assert server.stopped_in < 20


def test_the_file_is_drawn(repository):
    """What the README says."""
    with Server(config(repository, "separate"), OTEL_TRACES_EXPORTER="file") as server:
        with ThreadPoolExecutor(10) as pool:
            answers = [*pool.map(lambda _: post(server, pictures.jpeg(40, 60)), range(10))]
        expected = {answer.json()["trace_id"] for answer in answers}

        def printed():
            command = [sys.executable, "-m", "scripts.trace", "--last", "10", "--json"]
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
            if "there are no traces" in done.stderr:
                return []
            assert done.returncode == 0, done.stderr
            return json.loads(done.stdout)

        assert eventually(lambda: {trace["trace_id"] for trace in printed()} == expected)
        for trace in printed():
            names = {span["name"] for span in trace["spans"]}
            assert names >= {"classify", "queue", "decode", "predict one", "predict six", "combine", "label"}
