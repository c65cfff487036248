"""Calls to a node by Serve's own handle: between machines, and wherever no socket leads to the node."""

from __future__ import annotations

import asyncio
import logging
from typing import Generic, TypeVar

from ray.exceptions import ActorDiedError, ActorUnavailableError
from ray.serve.handle import DeploymentHandle

from deployments.contract.batch import Batch

logger = logging.getLogger("ray.serve")

P = TypeVar("P")
Q = TypeVar("Q")


class HandleEdge(Generic[P, Q]):
    """A node in another process, awaited like a node in this one."""

    def __init__(self, handle: DeploymentHandle[Batch[Q]]) -> None:
        self._handle = handle

    async def __call__(self, batch: Batch[P]) -> Batch[Q]:
        """Send the batch and wait for the node's answer; once more if the replica or its machine is lost meanwhile."""
        sent = batch.outbound()
        try:
            answer = await self._call(sent)
        except (ActorDiedError, ActorUnavailableError) as err:
            logger.warning("a replica was lost (%s); its batch is sent to another", type(err).__name__)
            answer = await self._call(sent)
        return answer.after(batch)

    async def _call(self, sent: Batch[P]) -> Batch[Q]:
        response = self._handle.remote(sent)
        try:
            answer: Batch[Q] = await response
        except asyncio.CancelledError:
            # The node would go on working for nobody while the next batch waits.
            response.cancel()  # type: ignore[no-untyped-call]
            raise
        return answer
