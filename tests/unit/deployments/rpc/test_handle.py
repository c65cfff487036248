import asyncio

import pytest
from ray.exceptions import ActorUnavailableError
from ray.serve._private.common import DeploymentID
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError

from deployments.contract.errors import NoReplica, Overloaded
from deployments.rpc.edge import HandleEdge
from tests.batches import batch


async def test_a_call_that_nobody_waits_for_any_more_is_cancelled_at_the_node():
    class Response:
        cancelled = False

        def __await__(self):
            return asyncio.sleep(60).__await__()

        def cancel(self):
            self.cancelled = True

    class Handle:
        def remote(self, batch):
            return response

    response = Response()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(HandleEdge(Handle())(batch(["a"])), 0.01)
    assert response.cancelled


async def test_a_batch_whose_replica_is_lost_is_sent_once_more():
    class Handle:
        calls = 0

        def __init__(self, lost):
            self.lost = lost

        def remote(self, sent):
            self.calls += 1
            return self.answer(sent)

        async def answer(self, sent):
            if self.calls <= self.lost:
                raise ActorUnavailableError("the machine is gone", None)
            return sent

    handle = Handle(lost=1)
    assert (await HandleEdge(handle)(batch(["a"]))).payload == ["a"]
    assert handle.calls == 2
    with pytest.raises(ActorUnavailableError):
        await HandleEdge(Handle(lost=2))(batch(["a"]))


async def test_a_batch_that_serve_does_not_queue_is_refused_as_overload():
    class Handle:
        deployment_name = "heavy"

        async def remote(self, _):
            raise BackPressureError(num_queued_requests=1, max_queued_requests=1)

    with pytest.raises(Overloaded, match="heavy has as many"):
        await HandleEdge(Handle())(batch(["a"]))


async def test_a_node_that_serve_has_ended_has_no_replica():
    class Handle:
        deployment_name = "heavy"

        async def remote(self, _):
            raise DeploymentUnavailableError(DeploymentID("heavy", "ensemble"))

    with pytest.raises(NoReplica, match="Serve has ended heavy"):
        await HandleEdge(Handle())(batch(["a"]))
