"""Members are loaded and unloaded while the server is under load: nothing is lost, and every replica follows."""

import json

import httpx
import pytest

from tests.conftest import ROOT
from tests.environments import ask, environment
from tests.levels import level
from tests.networks import constant, one_hot, store
from tests.server.load import replicas
from tests.server.server import Server, config, eventually, post

HERE = ROOT / "tests" / "server"
IN_A_ROW = 24


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Two members of version 1, one a deployment of two replicas, the other inline in two replicas of the ingress."""
    repository = tmp_path_factory.mktemp("loading")
    for name, version in (("apart", 1), ("apart", 2), ("apart", 3), ("inside", 1), ("inside", 2)):
        store(repository, name, constant(one_hot(version)), version)
    (repository / "apart" / "3" / "model.bin").write_bytes(b"torn")
    content = config(repository, "inline", members=("apart", "inside"), ensemble={"quorum": 1})
    application = content["applications"][0]
    application["args"]["access"] = {"operators": "anyone"}
    for member in application["args"]["members"]:
        member["version"] = 1
    application["args"]["members"][0]["placement"] = "separate"
    # The entry for the member is made when it is loaded.
    [ingress] = application["deployments"]
    ingress["num_replicas"] = 2
    application["deployments"].append({"name": "apart", "num_replicas": 2, "ray_actor_options": {"num_cpus": 0.1}})
    with Server(content) as running:
        assert eventually(lambda: len({httpx.get(f"{running.url}/stats").json()["replica"] for _ in range(8)}) == 2)
        yield running


def answers(server):
    """The versions of many answers, by whichever replicas, and who was missing; those that failed are statuses."""
    seen = set()
    for _ in range(IN_A_ROW):
        answer = post(server, level(250))
        told = answer.json()
        seen.add((json.dumps(told["model_versions"]), *told.get("missing", {}).items()) if answer.is_success else 503)
    return seen


def test_members_are_loaded_and_unloaded_and_nothing_is_lost(server, tmp_path):
    picture = tmp_path / "picture"
    picture.write_bytes(level(250))
    python = environment("tritonclient", HERE / "shared" / "requirements-tritonclient.lock")
    told = ask(python, HERE / "loading_script.py", server.url.removeprefix("http://"), server.grpc, picture)
    for step, versions, missing in (
        ("named", {"apart": 2, "inside": 1}, {}),
        ("highest", {"apart": 2, "inside": 2}, {}),
        ("unloaded", {"inside": 2}, {"apart": "unloaded"}),
        ("again", {"apart": 1, "inside": 2}, {}),
        ("other", {"apart": 1}, {"inside": "unloaded"}),
        ("last", {"apart": 2}, {"inside": "unloaded"}),
    ):
        assert told[step] == [versions, missing, IN_A_ROW], step
    codes = [answer.partition(": ")[0].split()[-1] for answer in told["refused"]]
    assert codes == ["conflict", "conflict", "not_found", "not_found", *["invalid_parameter"] * 3]
    assert "SHA-256" in told["refused"][0]
    assert told["ready"] == [True, False, True, False, True, True]
    assert told["index"]["apart"] == ["UNAVAILABLE", "unloaded"]
    assert told["index"]["ensemble"] == ["READY", ""]
    assert all("unloaded: " in answer for answer in told["asked"])
    assert all("the quorum needs it" in answer for answer in told["needed"])
    assert told["versioned"] == "1"
    assert all(count > 0 for count in told["answers"])
    assert all(seen.startswith("[{") for seen in told["seen"]), told["seen"]
    codes = {code for _, missing in map(json.loads, told["seen"]) for code in missing.values()}
    assert codes == {"unloaded"}


def test_replicas_that_start_later_know_of_it(server):
    state = {('{"apart": 2}', ("inside", "unloaded"))}
    assert answers(server) == state
    for deployment, kept in (("Ingress", 1), ("apart", 0)):
        before = replicas(server, deployment)
        for process in before[kept:]:
            process.kill()
        gone = {process.pid for process in before[kept:]}
        assert eventually(
            lambda deployment=deployment, gone=gone: (
                len(found := {each.pid for each in replicas(server, deployment)}) == 2 and not found & gone
            ),
            60,
        )
        assert eventually(lambda: answers(server) == state, 60)
    assert httpx.get(f"{server.url}/v2/health/ready").json()["missing"] == {"inside": "unloaded"}
    load = f"{server.url}/v2/repository/models/inside/load"
    assert "browser" in httpx.post(load, headers={"Origin": "http://127.0.0.1"}).json()["error"]
    assert httpx.post(load, timeout=60).json() == {}
    assert eventually(lambda: answers(server) == {('{"apart": 2, "inside": 2}',)}, 60)
    assert "model_repository" in httpx.get(f"{server.url}/v2").json()["extensions"]
