import asyncio

import pytest

from graph.edges.handle import HandleEdge
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
