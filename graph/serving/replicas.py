"""How many replicas each deployment has, as Serve's controller reports it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping

from ray import serve

logger = logging.getLogger("ray.serve")

# The controller is asked no more often than this, however many people look at the page.
KEPT_S = 2.0


class Replicas:
    """Asks the controller, and keeps its answer for a moment."""

    def __init__(self, application: str) -> None:
        """Set the application whose deployments are reported."""
        self._application = application
        self._asked = -KEPT_S
        self._known: Mapping[str, Mapping[str, int]] = {}

    async def __call__(self) -> Mapping[str, Mapping[str, int]]:
        """The number of replicas by deployment and state, such as `RUNNING`; the last known if it fails."""
        now = time.monotonic()
        if now - self._asked >= KEPT_S:
            self._asked = now
            try:
                self._known = await asyncio.to_thread(self._ask)
            except Exception:
                logger.debug("asking for the replicas", exc_info=True)
        return self._known

    def _ask(self) -> dict[str, dict[str, int]]:
        deployments = serve.status().applications[self._application].deployments
        return {
            name: {str(state): count for state, count in each.replica_states.items() if count}
            for name, each in deployments.items()
        }
