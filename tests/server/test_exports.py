"""Where a real server's traces go: into a file, at the end. Without a collector: tests/server/test_warnings.py."""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from tests import pictures
from tests.server.server import Server, config, post


def test_what_waits_is_exported_at_shutdown_and_the_file_is_drawn(repository, tmp_path):
    waits = {"OTEL_TRACES_EXPORTER": "file", "OTEL_BSP_SCHEDULE_DELAY": "600000"}
    with Server(config(repository, "separate"), folder=tmp_path, **waits) as server:
        with ThreadPoolExecutor(10) as pool:
            answers = [*pool.map(lambda _: post(server, pictures.jpeg(40, 60)), range(10))]
        assert not [file for file in (tmp_path / "traces").glob("*") if file.stat().st_size]
    expected = {answer.json()["trace_id"] for answer in answers}
    command = [sys.executable, "-m", "ensemble_capacity.trace", "--last", "10", "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    drawn = json.loads(done.stdout)
    assert {trace["trace_id"] for trace in drawn} == expected
    for trace in drawn:
        names = {span["name"] for span in trace["spans"]}
        assert names >= {"classify", "queue", "decode", "predict one", "predict six", "combine", "label"}
