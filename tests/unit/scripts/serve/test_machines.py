import copy
import os
import shutil

import pytest
import yaml

from deployments.contract.hosts import CLUSTER_PORT, HOST_ADDRESS, cluster_port, host_address
from deployments.ray_internals.start import metrics_port
from scripts.errors import ScriptError
from scripts.serve import environment, machines
from scripts.serve.join import require_token
from scripts.shipped import shipped
from tests.networks import constant, one_hot, store
from tests.server.server import config


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    monkeypatch.setattr(os, "environ", {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ})


def test_a_machine_is_one_of_a_cluster_by_its_address():
    assert (host_address(), cluster_port()) == ("127.0.0.1", 0)
    machines.enter("10.0.0.1")
    assert (host_address(), cluster_port()) == ("10.0.0.1", 6379)
    machines.enter(None, 6380)
    assert (os.environ[HOST_ADDRESS], os.environ[CLUSTER_PORT], cluster_port()) == ("10.0.0.1", "6380", 6380)


def test_without_an_address_nothing_changes():
    machines.enter(None)
    content = {"http_options": {"host": "127.0.0.1"}}
    machines.listen_on_own_address(content)
    assert content["http_options"]["host"] == "127.0.0.1"
    environment.set_variables()
    assert os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] == "0"


@pytest.mark.parametrize(
    ("address", "why"),
    [("127.0.0.1", "can't reach"), ("0.0.0.0", "can't reach"), ("machine-1", "no IP address")],
)
def test_an_address_that_other_machines_can_not_use_is_refused(address, why):
    with pytest.raises(ScriptError, match=why):
        machines.enter(address)


def test_a_port_of_a_cluster_needs_its_address():
    with pytest.raises(ScriptError, match="--cluster-port is for a cluster"):
        machines.enter(None, 6380)


@pytest.mark.parametrize("port", ["many", "0", "65536"])
def test_a_port_of_the_cluster_that_is_none_is_refused(port):
    os.environ[CLUSTER_PORT] = port
    with pytest.raises(ScriptError, match=f"ENSEMBLE_CLUSTER_PORT is '{port}'"):
        machines.enter("10.0.0.1")


def test_a_cluster_needs_the_token():
    os.environ["RAY_AUTH_MODE"] = "disabled"
    with pytest.raises(ScriptError, match="token"):
        machines.enter("10.0.0.1")


def test_rays_processes_do_not_keep_to_loopback_in_a_cluster():
    machines.enter("10.0.0.1")
    environment.set_variables()
    assert "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER" not in os.environ
    assert os.environ["RAY_AUTH_MODE"] == "token"


@pytest.mark.parametrize(
    ("given", "then"), [("127.0.0.1", "10.0.0.2"), ("10.0.0.1", "10.0.0.2"), ("0.0.0.0", "0.0.0.0")]
)
def test_each_machine_listens_on_its_own_address_or_on_every_one(given, then):
    machines.enter("10.0.0.2")
    content = {"http_options": {"host": given}}
    machines.listen_on_own_address(content)
    assert content["http_options"]["host"] == then


def test_the_heads_port_may_be_left_out():
    assert machines.head_address("10.0.0.1") == "10.0.0.1:6379"
    assert machines.head_address("10.0.0.1:6380") == "10.0.0.1:6380"


def test_a_machine_that_joins_makes_no_token_of_its_own(tmp_path):
    os.environ[environment.TOKEN_PATH] = str(tmp_path / "token")
    with pytest.raises(ScriptError, match="copy the head's"):
        require_token()
    (tmp_path / "token").write_text("x")
    require_token()


def test_models_that_differ_are_named(tmp_path):
    store(tmp_path / "head", "one", constant(one_hot(1)))
    store(tmp_path / "head", "two", constant(one_hot(2)))
    for machine in ("same", "other"):
        shutil.copytree(tmp_path / "head", tmp_path / machine)
    shutil.rmtree(tmp_path / "other" / "two")
    store(tmp_path / "other", "two", constant(one_hot(3)))
    found = {
        machine: machines.common(config(tmp_path / machine, "inline", members=("one", "two")))
        for machine in ("head", "same", "other")
    }
    assert machines.differences(found["head"], found["same"]) == ([], "")
    [difference], mixed = machines.differences(found["head"], found["other"])
    assert mixed == ""
    assert difference.startswith("the model of two differs")
    others = {machines.ARITHMETIC, "Python", "ray", "openvino", "this project's code", "the model of one"}
    assert others < set(found["head"])


def test_code_of_another_distribution_that_differs_or_is_absent_is_named(tmp_path, monkeypatch):
    found = [machines.common({})]
    monkeypatch.syspath_prepend(tmp_path)
    for code in ("LEVEL = 1", "LEVEL = 2"):
        (tmp_path / "of_theirs.py").write_text(code)
        (info := tmp_path / "of_theirs-1.dist-info").mkdir(exist_ok=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: of-theirs\nVersion: 1\n")
        (info / "entry_points.txt").write_text("[ensemble_serving.combiners]\nlevel = of_theirs:LEVEL\n")
        found.append(machines.common({}))
    without, one, two = found
    for head, here in ((one, two), (one, without), (without, one)):
        [difference], _ = machines.differences(head, here)
        assert difference.startswith("the code of of-theirs differs")


def test_the_metrics_have_the_port_that_the_environment_names():
    assert metrics_port() > 0
    os.environ["RAY_METRICS_PORT"] = "9102"
    assert metrics_port() == 9102


def test_the_shipped_cluster_gives_each_machine_one_replica_of_every_node():
    content = yaml.safe_load(shipped("configs/cluster.yaml").read_text())
    default = yaml.safe_load(shipped("serve_config.yaml").read_text())
    [cluster], [single] = content["applications"], default["applications"]
    assert [each["name"] for each in cluster["deployments"]] == [each["name"] for each in single["deployments"]]
    assert {(each["num_replicas"], each["max_replicas_per_node"]) for each in cluster["deployments"]} == {(2, 1)}
    args = copy.deepcopy(cluster["args"])
    assert args.pop("access")["keys"] == "/etc/ensemble/keys"
    assert args == single["args"]
