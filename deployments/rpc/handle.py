"""Calls to a node by Serve's own handle: between machines, and wherever no socket leads to the node."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from ray.exceptions import ActorDiedError, ActorUnavailableError
from ray.serve.exceptions import BackPressureError
from ray.serve.handle import DeploymentHandle

from deployments.contract.batch import Batch
from deployments.contract.errors import Overloaded

logger = logging.getLogger("ray.serve")


class HandleEdge:
    """A node in another process, awaited like a node in this one."""

    def __init__(self, handle: DeploymentHandle[Any]) -> None:
        self._handle = handle

    async def __call__(self, batch: Batch[Any]) -> Batch[Any]:
        """Send the batch and wait for the node's answer; once more if the replica or its machine is lost meanwhile.

        Raises:
            Overloaded: as many batches wait for the node as its `max_queued_requests` allows.
        """
        sent = batch.outbound()
        try:
            answer = await self._call(sent)
        except (ActorDiedError, ActorUnavailableError) as err:
            logger.warning("a replica was lost (%s); its batch is sent to another", type(err).__name__)
            answer = await self._call(sent)
        return answer.after(batch)

    async def _call(self, sent: Batch[Any]) -> Batch[Any]:
        response = self._handle.remote(sent)
        try:
            answer: Batch[Any] = await response
        except BackPressureError:
            raise Overloaded(f"{self._handle.deployment_name} has as many waiting calls as may wait") from None
        except asyncio.CancelledError:
            # The node would go on working for nobody while the next batch waits.
            response.cancel()  # type: ignore[no-untyped-call]
            raise
        return answer
