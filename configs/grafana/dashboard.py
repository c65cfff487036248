"""The dashboard as code: `python configs/grafana/dashboard.py` writes `dashboards/ensemble.json` beside it.

Each panel is a title, a unit, and its queries with their legends; https://grafana.github.io/grafana-foundation-sdk/.
"""

from __future__ import annotations

from pathlib import Path
from string import ascii_uppercase
from typing import NamedTuple

from grafana_foundation_sdk.builders import common, dashboard, prometheus, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import DataSourceRef

FILE = Path(__file__).parent / "dashboards" / "ensemble.json"
SOURCE = DataSourceRef(type_val="prometheus", uid="prometheus")
WIDTH, HEIGHT = 8, 8


class Panel(NamedTuple):
    """A panel.

    Attributes:
        title: what it shows.
        unit: Grafana's name of it.
        queries: legend and PromQL of each line.
    """

    title: str
    unit: str
    queries: dict[str, str]


def rate(metric: str, by: str, select: str = "") -> str:
    """Return the query for the growth of a counter, per second, by labels."""
    return f"sum by ({by}) (rate(ray_ensemble_{metric}{{{select}}}[$__rate_interval]))"


def quantile(share: float, metric: str, by: str = "") -> str:
    """Return the query for a quantile of a histogram, by labels."""
    labels = f"le, {by}" if by else "le"
    buckets = f"sum by ({labels}) (rate(ray_ensemble_{metric}_bucket[$__rate_interval]))"
    return f"histogram_quantile({share}, {buckets})"


def or_none(query: str) -> str:
    """Let a query give zero where it finds no series: a counter has no series before its first count."""
    return f"{query} or on() vector(0)"


CHANGED = rate("member_contributions_total", "member, version", 'outcome="changed"')
JUDGED = rate("member_contributions_total", "member, version", 'outcome=~"same|changed"')

ROWS: dict[str, list[Panel]] = {
    "Traffic": [
        Panel("Requests by outcome", "reqps", {"{{outcome}}": rate("requests_total", "outcome")}),
        Panel("Requests by protocol", "reqps", {"{{protocol}}": rate("requests_total", "protocol")}),
        Panel(
            "Refused, degraded, badly configured",
            "reqps",
            {
                "refused": or_none("sum(rate(ray_ensemble_admission_refusals_total[$__rate_interval]))"),
                "without a member": or_none("sum(rate(ray_ensemble_degraded_answers_total[$__rate_interval]))"),
                "user_config refused": or_none("sum(rate(ray_ensemble_config_refused_total[$__rate_interval]))"),
            },
        ),
    ],
    "Latency": [
        Panel(
            "A request",
            "s",
            {f"p{100 * share:g}": quantile(share, "request_duration_seconds") for share in (0.5, 0.95, 0.99)},
        ),
        Panel("Stages, p95", "s", {"{{stage}}": quantile(0.95, "stage_duration_seconds", "stage")}),
        Panel(
            "Waiting for a batch",
            "s",
            {f"p{100 * share:g}": quantile(share, "queue_wait_seconds") for share in (0.5, 0.99)},
        ),
    ],
    "Batches and members": [
        Panel("Images in a batch", "none", {f"p{100 * s:g}": quantile(s, "batch_size") for s in (0.5, 0.95)}),
        Panel("Images answered by a member", "cps", {"{{member}}": rate("member_predictions_total", "member")}),
        Panel(
            "Agreement with the ensemble",
            "percentunit",
            {
                "{{member}}": rate("member_predictions_total", "member", 'agrees="true"')
                + " / "
                + rate("member_predictions_total", "member")
            },
        ),
        Panel(
            "Answers that a member changes",
            "percentunit",
            {
                "{{member}} {{version}}": f"({CHANGED} or 0 * {JUDGED}) / {JUDGED}",
            },
        ),
        Panel("Model version", "none", {"{{member}}": "max by (member) (ray_ensemble_member_version)"}),
        Panel(
            "Answers without a member",
            "cps",
            {"{{member}}: {{reason}}": or_none(rate("degraded_answers_total", "member, reason"))},
        ),
        Panel("Classes", "cps", {"{{label}}": rate("predictions_total", "label")}),
        Panel(
            "Images of canaries and shadows",
            "cps",
            {
                "{{member}}, {{role}}": or_none(rate("canary_images_total", "member, role")),
                "{{member}}, {{result}}": or_none(rate("shadow_images_total", "member, result")),
            },
        ),
        Panel(
            "Right, of labelled images",
            "percentunit",
            {
                "{{kind}} {{name}} {{version}}": or_none(
                    'sum by (kind, name, version) (ray_ensemble_feedback_answers_total{right="true"})'
                    " / sum by (kind, name, version) (ray_ensemble_feedback_answers_total)"
                )
            },
        ),
    ],
    "Placement": [
        Panel(
            "Replicas",
            "none",
            {"{{deployment}}": "count by (deployment) (ray_ensemble_process_resident_memory_bytes)"},
        ),
        Panel(
            "CPU, cores",
            "none",
            {
                "{{deployment}}": rate("process_cpu_seconds_total", "deployment"),
                "all cores": "sum(max by (NodeAddress) (ray_ensemble_machine_cpus))",
            },
        ),
        Panel(
            "CPU, standard deviation over 10 minutes, cores",
            "none",
            {"{{deployment}}": f"stddev_over_time(({rate('process_cpu_seconds_total', 'deployment')})[10m:15s])"},
        ),
        Panel(
            "Memory",
            "bytes",
            {"{{deployment}}": "sum by (deployment) (ray_ensemble_process_resident_memory_bytes)"},
        ),
        Panel("Batches sent to nodes", "cps", {"{{node}}, {{edge}}": or_none(rate("edge_calls_total", "node, edge"))}),
        Panel(
            "Open connections to nodes",
            "none",
            {"{{node}}": or_none("sum by (node) (ray_ensemble_edge_connections)")},
        ),
    ],
    "Cascade and cache": [
        Panel("Last member asked", "cps", {"{{member}}": or_none(rate("cascade_exits_total", "member"))}),
        Panel(
            "Audit: exits that all members answer otherwise",
            "percentunit",
            {
                "{{member}}, {{bound}}": or_none("max by (member, bound) (ray_ensemble_cascade_audit_share)"),
                "the bound": or_none("max(ray_ensemble_cascade_audit_at_most)"),
            },
        ),
        Panel("Images in the cache", "cps", {"{{result}}": or_none(rate("cache_images_total", "result"))}),
        Panel(
            "Thresholds",
            "none",
            {"{{member}}": or_none("max by (member) (ray_ensemble_cascade_exit_at)")},
        ),
        Panel(
            "Fewer members because of the load",
            "cps",
            {"images": or_none("sum(rate(ray_ensemble_cascade_load_shed_total[$__rate_interval]))")},
        ),
        Panel("Memory of the cache", "bytes", {"bytes": or_none("sum(ray_ensemble_cache_bytes)")}),
    ],
}


def build() -> str:
    """Build the dashboard as Grafana's JSON."""
    board = dashboard.Dashboard("Ensemble").uid("ensemble").tags(["ensemble"]).readonly()
    board.refresh("10s").time("now-30m", "now")
    for title, panels in ROWS.items():
        board.with_row(dashboard.Row(title))
        for panel in panels:
            drawn = timeseries.Panel().title(panel.title).unit(panel.unit).min(0).datasource(SOURCE)
            # Ray reports every 10 s, and a rate needs several reports.
            drawn.interval("15s").span(WIDTH).height(HEIGHT).legend(common.VizLegendOptions().show_legend(True))
            for name, (legend, query) in zip(ascii_uppercase, panel.queries.items(), strict=False):
                target = prometheus.Dataquery().ref_id(name).expr(query).legend_format(legend)
                drawn.with_target(target.datasource(SOURCE))
            board.with_panel(drawn)
    return JSONEncoder(sort_keys=True, indent=2).encode(board.build()) + "\n"


if __name__ == "__main__":
    FILE.write_text(build(), encoding="utf-8")
