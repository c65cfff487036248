"""The benchmark as its user runs it, small."""

import json
import subprocess
import sys

from tests.conftest import ROOT

FIELDS = {
    "workload",
    "system",
    "placement",
    "protocol",
    "clients",
    "requests",
    "requests_per_s",
    "p50_ms",
    "p99_ms",
    "server_cpu_ms_per_request",
    "client_cpu_ms_per_request",
    "resident_mb",
    "ratio_to_limit",
    "tail_requests_per_s",
    "tail_ratio_to_limit",
}


def test_a_row_for_each_system_placement_and_protocol(tmp_path):
    command = [sys.executable, "-m", "lab.benchmark", "--workload", "trivial", "--systems", "limit", "colocated"]
    flags = ["--clients", "2", "--seconds", "0.5", "--rounds", "1", "--json", str(tmp_path / "rows.json")]
    done = subprocess.run([*command, *flags], cwd=ROOT, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert all(set(row) == FIELDS for row in rows)
    assert [(row["system"], row["placement"], row["protocol"]) for row in rows] == [
        ("limit", None, None),
        ("colocated", "colocated", "http"),
    ]
    for row in rows[1:]:
        assert row["requests_per_s"] > 1
        assert 0 < row["p50_ms"] <= row["p99_ms"]
        assert row["server_cpu_ms_per_request"] > 0
        assert row["client_cpu_ms_per_request"] > 0
        assert row["resident_mb"] > 50
        assert row["ratio_to_limit"] > 0
