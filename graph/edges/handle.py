"""A node behind Serve's own handle: between machines, and wherever no shorter way is open."""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar

from ray.serve.handle import DeploymentHandle

from deployments.contract.batch import Batch

P = TypeVar("P")
Q = TypeVar("Q")


class HandleEdge(Generic[P, Q]):
    """A node in another process, awaited like one in this."""

    def __init__(self, handle: DeploymentHandle[Batch[Q]]) -> None:
        """Set the handle of the node's deployment."""
        self._handle = handle

    async def __call__(self, batch: Batch[P]) -> Batch[Q]:
        """Send the batch, wait for the node's."""
        # What has been noted so far stays here: the node has no use for it.
        response = self._handle.remote(batch.without_steps())
        try:
            answer: Batch[Q] = await response
        except asyncio.CancelledError:
            # Or the node would work on for nobody, while the next batch waits.
            response.cancel()  # type: ignore[no-untyped-call]
            raise
        return answer.after(batch)
