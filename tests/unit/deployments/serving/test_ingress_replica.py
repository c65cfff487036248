"""A replica of the ingress as Serve starts it."""

import asyncio

import pytest

from deployments.ingress.ingress import Ingress
from deployments.ingress.listeners.front import Front
from deployments.ingress.listeners.slot import APPLICATION, FOLDER
from deployments.serving import ingress_replica
from tests.conftest import ROOT
from tests.networks import constant, one_hot, store
from tests.replica import served

INLINE = {name: {"placement": "inline"} for name in ("transformer", "combiner", "labeler")}


@pytest.fixture
def args(tmp_path):
    store(tmp_path, "one", constant(one_hot(1)))
    return {"model_repository": str(tmp_path), "members": [{"name": "one", "placement": "inline"}], **INLINE}


@pytest.fixture
def answered(monkeypatch):
    """Set when the members are to answer."""
    answered, warm_up = asyncio.Event(), Ingress.warm_up

    async def wait(ingress):
        await answered.wait()
        return await warm_up(ingress)

    monkeypatch.setattr(Ingress, "warm_up", wait)
    return answered


@pytest.fixture
def opened(monkeypatch, tmp_path, answered):
    """For each time that the replica opened its sockets for HAProxy, whether the members had answered."""
    opened = []

    async def keep_open(_):
        opened.append(answered.is_set())

    monkeypatch.setenv(FOLDER, str(tmp_path))
    monkeypatch.setenv(APPLICATION, "ensemble")
    monkeypatch.setattr(Front, "keep_open", keep_open)
    return opened


async def test_a_new_replica_takes_requests_when_every_member_has_answered(args, answered, opened):
    async with served(args) as client:
        first = asyncio.ensure_future(client.replica.check_health())
        assert (await client.get("/v2/health/ready")).status_code == 503
        answered.set()
        await first
        assert (await client.get("/v2/health/ready")).status_code == 200
    assert opened == [True]


async def test_a_new_replica_does_not_wait_for_ever(args, opened, monkeypatch):
    monkeypatch.setattr(ingress_replica, "MEMBERS_S", 0.0)
    async with served(args) as client:
        await client.replica.check_health()
        await client.replica.check_health()
    assert opened == [False, False]


async def test_a_model_has_the_version_that_answers_now(args, tmp_path):
    args["members"][0]["version"] = 1
    store(tmp_path, "one", constant(one_hot(2)), version=2)
    async with served(args) as client, asyncio.timeout(60):
        client.replica.reconfigure({"nodes": {"one": {"version": 2}}})
        while (await client.get("/v2/models/one")).json()["versions"] != ["2"]:
            answer = await client.post("/classify", content=(ROOT / "tests" / "cat.jpg").read_bytes())
            assert answer.status_code == 200
            await asyncio.sleep(0.02)
        assert (await client.get("/v2/models/one/versions/2")).status_code == 200
        assert (await client.get("/v2/models/one/versions/1")).status_code == 404
