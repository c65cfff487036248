"""How a replica of a node ends: at once, or with its callers if its node is no longer in the configuration."""

import asyncio
from types import SimpleNamespace

import pytest

from deployments.serving import node_replica
from deployments.serving.node_replica import NodeDeployment


class Listener:
    """A listener that notes when it is closed."""

    is_closed = False

    def __init__(self):
        self.callers = {"ingress"}

    async def close(self):
        self.is_closed = True


@pytest.fixture
def listed(monkeypatch):
    """The deployments that Serve lists, of the application of a replica of `resnet`; every look is soon."""
    deployments = {"Ingress": None}
    context = SimpleNamespace(app_name="ensemble", deployment="resnet")
    status = SimpleNamespace(applications={"ensemble": SimpleNamespace(deployments=deployments)})
    monkeypatch.setattr(
        node_replica, "serve", SimpleNamespace(get_replica_context=lambda: context, status=lambda: status)
    )
    monkeypatch.setattr(node_replica, "LOOK_EVERY_S", 0.001)
    return deployments


def ending():
    """A replica's listener, and the task in which Serve ends the replica."""
    listener = Listener()
    # The end of an object of the class itself would be another one, which nobody awaits.
    return listener, asyncio.ensure_future(NodeDeployment.__del__(SimpleNamespace(_listener=listener)))


async def looks():
    """Let several looks pass."""
    await asyncio.sleep(0.05)


async def test_a_removed_node_works_on_until_its_callers_have_ended(listed):
    listener, end = ending()
    await looks()
    assert not listener.is_closed
    listener.callers.clear()
    await end
    assert listener.is_closed


async def test_a_removed_node_that_comes_back_ends(listed):
    listener, end = ending()
    await looks()
    assert not listener.is_closed
    listed["resnet"] = None
    await end
    assert listener.is_closed


async def test_a_removed_node_does_not_wait_for_ever(listed, monkeypatch):
    monkeypatch.setattr(node_replica, "REMOVED_S", 0.01)
    listener, end = ending()
    await asyncio.wait_for(end, 10)
    assert listener.is_closed


@pytest.mark.parametrize("names", [["Ingress", "resnet"], []], ids=["configured", "being built"])
async def test_any_other_replica_ends_at_once(listed, names, monkeypatch):
    listed.clear()
    listed.update(dict.fromkeys(names))
    monkeypatch.setattr(node_replica, "LOOK_EVERY_S", 60)
    listener, end = ending()
    await asyncio.wait_for(end, 10)
    assert listener.is_closed


async def test_a_replica_ends_if_serve_does_not_tell(listed, monkeypatch):
    def unreachable():
        raise RuntimeError

    monkeypatch.setattr(node_replica.serve, "status", unreachable)
    listener, end = ending()
    await asyncio.wait_for(end, 10)
    assert listener.is_closed
