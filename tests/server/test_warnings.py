"""Warnings that the documentation promises, in the terminal of `ensemble serve`: each once, with who logged it."""

import json
import math
import re
import shutil
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
import yaml

from ensemble_models import manifest
from scripts import keys
from scripts.configuration import check
from scripts.serve.exposure import CERTIFICATE, CERTIFICATE_KEY
from tests import pictures
from tests.certificates import self_signed
from tests.conftest import ROOT
from tests.model_sources import Site
from tests.networks import constant, one_hot, store
from tests.server.server import Server, config, eventually, free_ports, post
from tests.server.test_isolation import decoding

# How a page promises one.
PROMISE = re.compile(r"\blogs?\s+(says|has|reports|contains)\b|\b(is|and) logged\b|with a warning|print a\s+warning")
# How each begins, and the page that promises it.
PROMISED = {
    "docs/cluster.md": "members: 'far'",
    "docs/observability.md": "spans can't be exported to",
    "docs/cache.md": "Redis does not answer",
    "docs/configuration.md": "member 'latest': version 2 is refused",
    "docs/operations.md": "a decoding process had ended by",
    "docs/configuration.md, changes": "user_config refused",
}
# Of a server whose settings and surroundings change.
PROMISED_OF_CHANGES = {
    "docs/api.md": "answered no probabilities for",
    "docs/cascade.md": "its threshold rises from",
    "docs/rollout.md": "canary of member 'quick' is rolled back",
    "docs/security.md": "the keys before stay in force",
    "docs/security.md, TLS": "the certificate is not renewed",
    "docs/models.md": "far-off names no classes",
    "docs/operations.md, models from elsewhere": "version 1 of 'slow' was fetched before and is served",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
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
    with Server(content, **environment) as running:
        running.root = root
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
    assert done.stderr.splitlines()[-1].startswith("error: user_config refused"), done.stderr
    store(server.root, "latest", constant(one_hot(0, classes=5)), 2)
    assert post(server, pictures.encode(pictures.grey(10), ".png"), "image/png").status_code == 200

    def printed(words):
        return [line for line in server.log().splitlines() if words in line]

    for page, words in PROMISED.items():
        assert eventually(lambda words=words: printed(words)), (page, server.log())
        assert len(printed(words)) == 1, server.log()
        [line] = printed(words)
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


@pytest.fixture(scope="module")
def changing(tmp_path_factory):
    """A server that prints JSON, with a cascade and a canary; the website that its models came from is away now."""
    folder = tmp_path_factory.mktemp("changing")
    store(folder / "models", "quick", constant(one_hot(1, peak=0.9)), 1)
    store(folder / "models", "quick", constant([math.nan] * 8), 2)
    store(folder / "models", "slow", constant(one_hot(2, peak=0.99)), 1)
    named = store(folder / "models", "far-off", constant(one_hot(2, peak=0.99)), 1) / "metadata.json"
    named.write_text(
        json.dumps({name: each for name, each in json.loads(named.read_text()).items() if name != "classes"})
    )
    order = ["quick", "slow", "far-off"]
    audit = {"share": 1.0, "at_most": 0.01, "tighten": True}
    content = config(
        "",
        "inline",
        members=order,
        access={"keys": str(folder / "keys")},
        ensemble={"quorum": 1, "cascade": {"order": order, "exit_at": [0.5, 0.5], "audit": audit}},
    )
    arguments = content["applications"][0]["args"]
    arguments["members"][0] |= {"version": 1, "canary": {"version": 2, "share": 0.5, "least": 10}}
    certificate, key = self_signed(folder)
    environment = {CERTIFICATE: str(certificate), CERTIFICATE_KEY: str(key), "XDG_CACHE_HOME": str(folder / "cache")}
    with pytest.MonkeyPatch.context() as patch, Site(folder / "models") as site:
        patch.setenv("XDG_CACHE_HOME", environment["XDG_CACHE_HOME"])
        arguments["model_repository"] = f"{site.url}#sha256={manifest.write(folder / 'models')}"
        text = keys.add(folder / "keys", "mobile", None)
        check(content["applications"][0])
    content["logging_config"]["encoding"] = "JSON"
    with Server(content, **environment) as running:
        running.headers = {"Authorization": f"Bearer {text}", "Content-Type": "image/png"}
        running.keys, running.certificate = folder / "keys", certificate
        yield running


def test_what_is_decided_while_it_runs_is_seen(changing):
    def classify(level):
        image = pictures.encode(pictures.grey(level), ".png")
        return httpx.post(f"{changing.url}/classify", content=image, headers=changing.headers, verify=False)

    assert {classify(level).status_code for level in range(0, 250, 5)} == {200}
    shutil.copy(ROOT / "README.md", changing.certificate)
    changing.keys.write_text("no key\n")
    # The file is looked at when a key comes.
    words = PROMISED_OF_CHANGES["docs/security.md"]
    assert eventually(lambda: classify(0).status_code == 200 and words in changing.log()), changing.log()
    for page, words in PROMISED_OF_CHANGES.items():
        assert eventually(lambda words=words: words in changing.log()), (page, changing.log())
    lines = [line for line in changing.log().splitlines() if "is rolled back" in line or "threshold rises" in line]
    assert len(lines) == 2, changing.log()
    assert {json.loads(line)["levelname"] for line in lines} <= {"WARNING", "ERROR"}


def test_every_page_that_promises_one_is_here():
    promising = {page for page in (ROOT / "docs").glob("*.md") if PROMISE.search(page.read_text())}
    listed = {ROOT / page.partition(",")[0] for page in (*PROMISED, *PROMISED_OF_CHANGES)}
    assert promising <= listed, promising - listed
