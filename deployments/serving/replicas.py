"""How many replicas each deployment has, and where, as Serve's controller reports it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping

from deployments.ray_internals.serve_client import replicas

logger = logging.getLogger("ray.serve")

# The controller is asked no more often than this, however many people look at the page.
KEPT_S = 2.0


class Replicas:
    """Asks the controller, and keeps its answer for a moment."""

    def __init__(self, application: str) -> None:
        self._application = application
        self._asked = -KEPT_S
        self._known: Mapping[str, Mapping[tuple[str, str], int]] = {}

    async def __call__(self) -> Mapping[str, Mapping[tuple[str, str], int]]:
        """Count the replicas by deployment, state and machine; returns the last counts if the controller fails."""
        now = time.monotonic()
        if now - self._asked >= KEPT_S:
            self._asked = now
            try:
                self._known = await asyncio.to_thread(replicas, self._application)
            except Exception:
                logger.debug("asking for the replicas", exc_info=True)
        return self._known
