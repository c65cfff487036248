"""Every query of the dashboard, and every alert, asked of a real Prometheus that scrapes a real server."""

import json
import re
import shutil
import subprocess
import time
from contextlib import contextmanager

import httpx
import pytest
import yaml

from tests.conftest import ROOT
from tests.server.seen.conftest import CAT, MEMBERS
from tests.server.server import eventually, free_ports, post

pytestmark = pytest.mark.skipif(not shutil.which("prometheus"), reason="no prometheus: Debian's package of that name")
# Of what never happens in the servers here: refusals, load, and early exits of a cascade, enough to audit.
SILENT = {
    f"ray_ensemble_{name}"
    for name in (
        *("admission_refusals_total", "config_refused_total", "cascade_load_shed_total"),
        *("cascade_audit_share", "cascade_audit_at_most"),
    )
}
BOARD = ROOT / "configs" / "grafana" / "dashboards" / "ensemble.json"


@contextmanager
def prometheus(server, folder):
    """Our configuration, but for what depends on the machine: the port of Ray's metrics, and a faster pace."""
    config = yaml.safe_load((ROOT / "configs" / "prometheus.yaml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(ROOT / "configs" / name) for name in config["rule_files"]]
    ray = next(job for job in config["scrape_configs"] if job["job_name"] == "ray")
    [group] = ray["static_configs"]
    group["targets"] = [f"127.0.0.1:{server.ray_metrics_port}"]
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
    [port] = free_ports(1)
    command = ["prometheus", f"--config.file={folder / 'prometheus.yaml'}", f"--storage.tsdb.path={folder / 'data'}"]
    command += [f"--web.listen-address=127.0.0.1:{port}"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:

            def is_ready():
                try:
                    return client.get("/-/ready").status_code == 200
                except httpx.TransportError:
                    return False

            assert eventually(is_ready, 60), (folder / "log").read_text()
            yield client
    finally:
        process.terminate()
        process.wait()


def test_every_query_gives_data_of_known_traffic(server, tmp_path):
    panels = {panel["title"]: panel for panel in json.loads(BOARD.read_text())["panels"] if "targets" in panel}
    queries = {
        (title, target["legendFormat"]): target["expr"].replace("$__rate_interval", "1m")
        for title, panel in panels.items()
        for target in panel["targets"]
    }
    assert len(queries) > 20
    separate = len(server.content["applications"][0]["deployments"]) > 1
    with prometheus(server, tmp_path) as client:

        def ask(query):
            answer = client.get("/api/v1/query", params={"query": query}).json()
            assert answer["status"] == "success", (query, answer)
            # What a division by nothing gives is no data.
            return [(s["metric"], float(s["value"][1])) for s in answer["data"]["result"] if s["value"][1] != "NaN"]

        def has_mistakes():
            found = ask(queries["Requests by outcome", "{{outcome}}"])
            return any(metric["outcome"] == "invalid_image" and value > 0 for metric, value in found)

        # A rate is seen once a counter has grown between two of Ray's reports.
        waiting = dict(queries)
        give_up = time.monotonic() + 90
        while (waiting or not has_mistakes()) and time.monotonic() < give_up:
            assert post(server, CAT, members="true").status_code == 200
            assert post(server, b"no image").status_code == 400
            waiting = {name: query for name, query in waiting.items() if not ask(query)}
        assert not waiting
        found = {name: ask(query) for name, query in queries.items()}

        def labels(title, legend, label):
            return {metric[label] for metric, value in found[title, legend] if value > 0}

        assert labels("Requests by outcome", "{{outcome}}", "outcome") >= {"ok", "invalid_image"}
        stages = {"decode", *(f"predict {name}" for name in MEMBERS), "combine", "label"}
        assert labels("Stages, p95", "{{stage}}", "stage") == stages
        agreed = {metric["member"]: value for metric, value in found["Agreement with the ensemble", "{{member}}"]}
        assert agreed == dict.fromkeys(MEMBERS, 1)
        versions = {metric["member"]: value for metric, value in found["Model version", "{{member}}"]}
        assert versions == dict.fromkeys(MEMBERS, 2)
        deployments = {each["name"] for each in server.content["applications"][0]["deployments"]}
        assert labels("Replicas", "{{deployment}}", "deployment") == deployments
        assert all(value == 1 for _, value in found["Replicas", "{{deployment}}"])
        if separate:
            assert labels("Batches sent to nodes", "{{node}}, {{edge}}", "edge") == {"direct"}
        alerts = client.get("/api/v1/alerts").json()["data"]["alerts"]
        assert [alert for alert in alerts if alert["state"] == "firing"] == []
        rules = client.get("/api/v1/rules").json()["data"]["groups"][0]["rules"]
        assert {rule["health"] for rule in rules} == {"ok"}


def test_what_the_dashboard_asks_for_is_exported(six):
    """Also where a query gives a zero for what there is not, as for the cache of a server without one."""
    panels = [panel for panel in json.loads(BOARD.read_text())["panels"] if "targets" in panel]
    queries = [target["expr"] for panel in panels for target in panel["targets"]]
    wanted = {name for query in queries for name in re.findall(r"ray_ensemble_\w+", query)} - SILENT
    address = re.search(r"Metrics: (\S+)", six.log())[1]

    def missing():
        return wanted - set(re.findall(r"^(ray_ensemble_\w+){", httpx.get(address, timeout=30).text, re.M))

    # Those of edges need separate nodes; the test above has them.
    assert eventually(lambda: all("_edge_" in name for name in missing()), 60), missing()
