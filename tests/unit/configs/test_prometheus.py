"""The configurations of what runs beside the service, by the programs that read them."""

import re
import runpy
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.conftest import ROOT

CONFIGS = ROOT / "configs"


@pytest.mark.skipif(not shutil.which("promtool"), reason="no promtool: Debian's package prometheus")
@pytest.mark.parametrize(
    "command",
    [
        ("check", "config", CONFIGS / "prometheus.yaml"),
        ("test", "rules", Path(__file__).parent / "alerts.yaml"),
    ],
    ids=["config", "alerts"],
)
def test_prometheus_takes_them(command):
    done = subprocess.run(["promtool", *command], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(not shutil.which("promtool"), reason="no promtool: Debian's package prometheus")
def test_a_panel_has_a_line_of_zero_only_where_there_is_no_other(tmp_path):
    query = runpy.run_path(str(CONFIGS / "grafana" / "dashboard.py"))["or_none"]("sum by (member) (images)")
    case = {
        "interval": "1m",
        "input_series": [{"series": 'images{member="resnet"}', "values": "_x5 7x5"}],
        "promql_expr_test": [
            {"expr": query, "eval_time": "3m", "exp_samples": [{"labels": "{}", "value": 0}]},
            {"expr": query, "eval_time": "8m", "exp_samples": [{"labels": '{member="resnet"}', "value": 7}]},
        ],
    }
    (file := tmp_path / "panel.yaml").write_text(yaml.safe_dump({"tests": [case]}))
    done = subprocess.run(["promtool", "test", "rules", file], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_is_tested():
    rules = yaml.safe_load((CONFIGS / "alerts.yaml").read_text())["groups"][0]["rules"]
    cases = yaml.safe_load((Path(__file__).parent / "alerts.yaml").read_text())["tests"]
    raised = {test["alertname"] for test in cases[-1]["alert_rule_test"] if "exp_alerts" in test}
    assert raised == {rule["alert"] for rule in rules}


def test_every_alert_has_a_section_of_the_documentation():
    rules = yaml.safe_load((CONFIGS / "alerts.yaml").read_text())["groups"][0]["rules"]
    sections = re.findall(r"^### (\w+)$", (ROOT / "docs" / "troubleshooting.md").read_text(), re.MULTILINE)
    assert sections == [rule["alert"] for rule in rules]
