"""Warnings that the documentation promises, in the terminal of `ensemble serve`: each once, with who logged it."""

import json
import re
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
import yaml

from tests import pictures
from tests.networks import constant, one_hot, store
from tests.server.server import Server, config, eventually, free_ports, post
from tests.server.test_isolation import decoding

# How each begins, and the page that promises it.
PROMISED = {
    "docs/remote.md": "members: 'far'",
    "docs/observability.md": "spans can't be exported to",
    "docs/cache.md": "Redis does not answer",
    "docs/configuration.md": "member 'latest': version 2 is refused",
    "docs/operations.md": "a decoding process had ended by",
    "docs/own-models.md": "user_config refused",
}


@pytest.fixture(scope="module", params=[(), ("--json-logs",)], ids=["text", "json"])
def server(request, tmp_path_factory):
    """A server of which everything that it needs besides is away."""
    root = tmp_path_factory.mktemp("models")
    store(root, "latest", constant(one_hot(1)), 1)
    away, collector, redis = free_ports(3)
    content = config(
        root,
        "inline",
        members=("latest",),
        cache={"redis": f"redis://127.0.0.1:{redis}"},
        ensemble={"quorum": 1, "patience_ms": 500},
    )
    content["applications"][0]["args"]["members"][0]["version_policy"] = "latest"
    far = {"name": "far", "kind": "open_inference", "url": f"http://127.0.0.1:{away}", "placement": "inline"}
    content["applications"][0]["args"]["members"].append(far)
    environment = {
        "OTEL_TRACES_EXPORTER": "otlp",
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{collector}",
        "OTEL_BSP_SCHEDULE_DELAY": "200",
    }
    with Server(content, flags=request.param, **environment) as running:
        running.root, running.flags = root, request.param
        yield running


def test_every_warning_is_seen_once_with_who_logged_it(server, tmp_path):
    assert post(server, pictures.jpeg()).status_code == 200
    assert post(server, pictures.encode(pictures.grey(10), ".png"), "image/png").status_code == 200
    for process in decoding(server):
        process.kill()
    server.content["applications"][0]["deployments"][0]["user_config"] = {
        "nodes": {"Combiner": {"weights": {"six": 1}}}
    }
    (tmp_path / "changed.yaml").write_text(yaml.safe_dump(server.content))
    command = [Path(sys.executable).with_name("ensemble"), "deploy", tmp_path / "changed.yaml"]
    done = subprocess.run(command, env=server.environment, capture_output=True, text=True)
    assert done.stderr.startswith("error: user_config refused"), done.stderr
    store(server.root, "latest", constant(one_hot(0, classes=5)), 2)
    assert post(server, pictures.encode(pictures.grey(10), ".png"), "image/png").status_code == 200

    def printed(words):
        return [line for line in server.log().splitlines() if words in line]

    for page, words in PROMISED.items():
        assert eventually(lambda words=words: printed(words)), (page, server.log())
        assert len(printed(words)) == 1, server.log()
        [line] = printed(words)
        if "--json-logs" in server.flags:
            assert json.loads(line)["levelname"] in {"WARNING", "ERROR"}
        else:
            assert re.match(r"(warning|error): \w+ \w+: ", line)
    logs = Path(re.search(r"^Logs: (\S+) ", server.log(), re.M)[1])
    assert list(logs.glob("replica_ensemble_Ingress_*.log"))


def test_metrics_are_where_the_404_and_the_terminal_name_them(server):
    [address] = re.findall(r"Metrics: (\S+)$", server.log(), re.M)
    refused = httpx.get(f"{server.url}/metrics")
    assert refused.status_code == 404
    assert address in refused.json()["error"]["message"]
    found = eventually(lambda: "ray_ensemble_requests_total{" in httpx.get(address, timeout=30).text)
    assert found
