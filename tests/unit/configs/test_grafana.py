"""The dashboard, by Grafana's own schema and by the metrics that the code registers; nobody looks at it here."""

import json
import re
import runpy

import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from lab.reference import pages
from tests.conftest import ROOT

CONFIGS = ROOT / "configs"
# Labels that Ray, Serve and Prometheus add to every metric, and of a histogram's buckets; and of a gauge its replica.
EVERYWHERE, OF_A_GAUGE = {"application", "deployment", "job", "instance", "NodeAddress", "le"}, {"replica"}
METRIC = re.compile(r"\bray_(ensemble_\w+)(?:\{([^}]*)\})?")
GROUPED = re.compile(r"by \(([^)]*)\)")


def registered():
    """By its name at Prometheus, the labels of each metric that the code registers."""
    return {
        f"{each.name}{'_bucket' if each.kind == 'histogram' else ''}": {
            *each.labels,
            *EVERYWHERE,
            *(OF_A_GAUGE if each.kind == "gauge" else ()),
        }
        for each in pages.registered()
    }


def is_part(part, whole):
    """Whether JSON is another one, but for fields that it lacks."""
    if isinstance(part, dict):
        return all(name in whole and is_part(value, whole[name]) for name, value in part.items())
    if isinstance(part, list):
        return len(part) == len(whole) and all(map(is_part, part, whole))
    return part == whole


def queries():
    """Every query of the dashboard and of the alerts, with the labels that its legend shows."""
    for panel in json.loads((CONFIGS / "grafana" / "dashboards" / "ensemble.json").read_text())["panels"]:
        for target in panel.get("targets", ()):
            yield target["expr"], set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
    for rule in yaml.safe_load((CONFIGS / "alerts.yaml").read_text())["groups"][0]["rules"]:
        yield rule["expr"], set()


def test_the_dashboard_is_what_its_code_builds():
    built = runpy.run_path(str(CONFIGS / "grafana" / "dashboard.py"))
    assert built["FILE"].read_text() == built["build"](), "run configs/grafana/dashboard.py"
    board = json.loads(built["build"]())
    assert len({panel["title"] for panel in board["panels"]}) == len(board["panels"])


def test_grafana_s_schema_knows_every_field_of_it():
    register_default_plugins()
    board = json.loads((CONFIGS / "grafana" / "dashboards" / "ensemble.json").read_text())

    def is_known(content):
        # What the schema lacks is left out.
        return is_part(content, json.loads(JSONEncoder().encode(Dashboard.from_json(content))))

    assert is_known(board)
    drawn = [panel for panel in board["panels"] if panel["type"] == "timeseries"]
    for panel in drawn:
        references = [target["refId"] for target in panel["targets"]]
        assert len(set(references)) == len(references) > 0
    drawn[0]["fieldConfig"]["defaults"]["unti"] = "s"
    assert not is_known(board)


def test_every_query_asks_for_metrics_and_labels_that_there_are():
    known = registered()
    assert len(known) > 30
    asked = list(queries())
    assert len(asked) > 40
    for query, shown in asked:
        found = METRIC.findall(query)
        assert {name for name, _ in found} <= known.keys(), query
        grouped = {label for labels in GROUPED.findall(query) for label in labels.split(", ")}
        selected = {label for _, matchers in found for label in re.findall(r"(\w+)\s*[=!]", matchers)}
        there = set().union(*(known[name] for name, _ in found))
        assert there, query
        assert grouped | selected <= there, query
        assert shown <= grouped, (query, shown)
