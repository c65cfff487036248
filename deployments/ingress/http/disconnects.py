"""Cancels the work for a client that disconnects before it has its answer.

Most requests are answered before it would matter, so the connection is watched only after a while. While the body is
read, its reader notices the disconnect.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from deployments.ingress.http import bodies

# After how long a connection is watched, and how often its body is looked at until it is whole, seconds.
AFTER_S = 0.25
# The status of an answer that nobody waits for any more: nginx' "client closed request".
LEFT = 499


class DisconnectWatcher:
    """Watches the connections of requests, and cancels the work for clients that disconnect."""

    def __init__(self) -> None:
        # By the task that answers it, each request and when it began by the loop's time, in this order.
        self._answering: dict[asyncio.Task[Any], tuple[Request, float]] = {}
        self._watching: dict[asyncio.Task[Any], asyncio.Task[None]] = {}
        self._left: set[asyncio.Task[Any]] = set()
        self._timer: asyncio.TimerHandle | None = None

    async def answered(self, request: Request, answer: Callable[[Request], Awaitable[Response]]) -> Response:
        """Answer a request; if the client disconnects before, cancel the work and answer with status `LEFT`."""
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None
        self._answering[task] = request, loop.time()
        if self._timer is None:
            # One timer for all requests, since most are answered before it.
            self._timer = loop.call_later(AFTER_S, self._look)
        try:
            return await answer(request)
        except asyncio.CancelledError:
            if task not in self._left or task.uncancel() > 0:
                raise
            return Response(status_code=LEFT)
        finally:
            del self._answering[task]
            self._left.discard(task)
            if (watch := self._watching.pop(task, None)) is not None:
                watch.cancel()

    def _look(self) -> None:
        """Watch the connection of each request that is older than `AFTER_S`."""
        loop = asyncio.get_running_loop()
        for task, (request, began) in self._answering.items():
            if loop.time() - began < AFTER_S:
                break
            # While the body is still read, reading it notices a disconnect.
            if task not in self._watching and bodies.is_whole(request):
                self._watching[task] = loop.create_task(self._watch(task, request))
        self._timer = loop.call_later(AFTER_S, self._look) if self._answering else None

    async def _watch(self, task: asyncio.Task[Any], request: Request) -> None:
        """Wait until the client disconnects, and cancel the task that answers it."""
        while (await request.receive())["type"] != "http.disconnect":
            pass
        self._left.add(task)
        task.cancel()
