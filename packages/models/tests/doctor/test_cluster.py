import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import scripts.keys
from deployments.contract.hosts import CLUSTER_PORT
from ensemble_models.doctor import cluster
from ensemble_models.doctor.__main__ import findings, main
from scripts.serve import machines
from scripts.serve.environment import TOKEN_PATH
from tests.server.server import config


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    monkeypatch.setattr(os, "environ", {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ})


def own_address():
    """An address of this machine that is not `127.0.0.1`; the kernel has all of 127.0.0.0/8."""
    return "127.0.0.9"


@pytest.fixture
def entered(monkeypatch):
    """This machine as one of a cluster, at an address of its own."""
    monkeypatch.setitem(os.environ, "ENSEMBLE_HOST_ADDRESS", own_address())


def verdicts(findings):
    return [(finding.verdict, finding.what) for finding in findings]


def test_without_an_address_it_goes_no_further():
    [finding] = findings(Path("nowhere.yaml"), True, None, None)
    assert (finding.verdict, "loopback" in finding.what, "--host-address" in finding.remedy) == ("wrong", True, True)


@pytest.mark.parametrize(("given", "why"), [("127.0.0.1", "can't reach"), ("192.0.2.1", "no address of this machine")])
def test_an_address_that_is_not_right_is_named(given, why):
    finding = cluster.address(given)
    assert finding.verdict == "wrong"
    assert why in finding.what


def spread(**args):
    each = {"num_replicas": 2, "max_replicas_per_node": 1}
    names = ("Ingress", "JpegTransformer", "one", "Combiner", "Labeler")
    return config("models", "separate", members=["one"], deployments=dict.fromkeys(names, each), **args)


def test_replicas_that_nothing_spreads_are_named():
    assert [finding.verdict for finding in cluster.placement(spread())] == ["ok"]
    content = spread()
    content["applications"][0]["deployments"][2].pop("max_replicas_per_node")
    [finding] = cluster.placement(content)
    assert (finding.verdict, "no replica of one" in finding.what) == ("look", True)
    content["applications"][0]["deployments"][0].pop("max_replicas_per_node")
    [finding] = cluster.placement(content)
    assert (finding.verdict, "Ingress" in finding.what) == ("wrong", True)


def test_serves_proxy_and_handles_are_named():
    assert [finding.verdict for finding in cluster.placement(spread(front="serve", edges="handle"))] == [
        "wrong",
        "look",
        "ok",
    ]


def test_nothing_is_printed_beside_the_findings(entered, tmp_path, capsys):
    scripts.keys.add(tmp_path / "keys", "client", None)
    content = spread(access={"keys": str(tmp_path / "keys")})
    content["http_options"]["host"] = "0.0.0.0"
    assert cluster.exposure(content).verdict == "look"
    assert capsys.readouterr().out == ""


def test_a_service_without_keys_is_wrong_and_the_port_of_the_head_must_be_free(entered):
    with socket.create_server((own_address(), 0)) as taken:
        os.environ[CLUSTER_PORT] = str(taken.getsockname()[1])
        content = spread()
        content["http_options"]["host"] = "0.0.0.0"
        found = list(cluster.head(content))
    assert [finding.verdict for finding in found] == ["wrong", "wrong", "ok"]
    assert found[0].remedy.startswith(CLUSTER_PORT)
    assert found[1].what.endswith("requires no key")
    assert found[1].remedy.startswith("Make a key (ensemble keys add NAME --file FILE)")


def test_a_machine_without_the_token_asks_nobody(entered, tmp_path):
    os.environ[TOKEN_PATH] = str(tmp_path / "folder" / "token")
    [finding] = cluster.joining("192.0.2.1")
    assert finding.verdict == "wrong"
    # The remedy works where the folder is not there, and the home directory is another than the head's.
    make, _, copy = finding.remedy.partition(": ")[2].partition(" && ")
    subprocess.run(make.split(), check=True)
    assert (tmp_path / "folder").stat().st_mode & 0o777 == 0o700
    assert copy == f"scp HEAD:.config/ensemble-serving/ray_token {tmp_path}/folder/token"


def test_a_head_that_is_not_there_is_named(entered, tmp_path, monkeypatch):
    os.environ[TOKEN_PATH] = str(tmp_path / "token")
    (tmp_path / "token").write_text("0" * 64)
    monkeypatch.setattr(cluster.machines, "ASK_S", 0.5)
    found = list(cluster.joining("127.0.0.1:9"))
    assert [finding.verdict for finding in found] == ["ok", "wrong"]


def test_another_generation_of_cpu_is_named_and_no_error(entered, monkeypatch):
    monkeypatch.setitem(os.environ, "RAY_AUTH_TOKEN", "0" * 64)
    common = {"Python": "3", machines.ARITHMETIC: "exact int8, bf16"}
    monkeypatch.setattr(machines, "published", lambda _: ({"http_options": {"host": "127.0.0.1"}}, common))
    monkeypatch.setattr(machines, "common", lambda _: {**common, machines.ARITHMETIC: "saturating int8, f32"})
    *_, unlike, alike, _ = cluster.joining("10.0.0.1")
    assert (unlike.verdict, alike.verdict) == ("look", "ok")
    assert "exact int8, bf16 on the head, saturating int8, f32 here" in unlike.what
    assert "ONEDNN_MAX_CPU_ISA=AVX2" in unlike.remedy


def test_a_token_in_the_environment_is_one(tmp_path, monkeypatch):
    monkeypatch.setitem(os.environ, TOKEN_PATH, str(tmp_path / "token"))
    monkeypatch.setitem(os.environ, "RAY_AUTH_TOKEN", "0" * 64)
    assert cluster.token().verdict == "ok"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--join", "10.0.0.1", "my.yaml"], "the configuration that the head publishes; leave out my.yaml"),
        (["--join", "10.0.0.1", "--cluster"], "--join: not together with --cluster"),
    ],
)
def test_a_machine_joins_or_is_the_head(flags, said, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["doctor", *flags])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    assert said in capsys.readouterr().err
