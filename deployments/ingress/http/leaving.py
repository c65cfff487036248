"""Notices that a client leaves before it has its answer, where Serve is told not to look for that.

Serve would look by two tasks for each request, and take in the whole of its body meanwhile, however large. Most
requests are answered before it would matter, so this one begins to look later, and leaves the body to whoever reads it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response

from deployments.ingress.http import bodies

# From when on a request is looked after, and how often it is asked whether its body is whole, seconds.
AFTER_S = 0.25
# The status of what nobody waits for any more; nginx' word for it.
LEFT = 499


def is_unwatched(request: Request) -> bool:
    """Whether Serve is told not to look; HAProxy's launcher has it told so, and lets no client tell it."""
    return request.headers.get("x-request-disconnect-disabled") == "?1"


async def answered(request: Request, answer: Callable[[Request], Awaitable[Response]]) -> Response:
    """The answer to a request, whose work is cancelled when its client leaves: then one that nobody reads."""
    limit = asyncio.timeout(None)
    watch = Watch(request, limit)
    try:
        async with limit:
            watch.wait()
            return await answer(request)
    except TimeoutError:
        if not limit.expired():
            raise
        return Response(status_code=LEFT)
    finally:
        watch.end()


class Watch:
    """Looks whether a client is still there."""

    def __init__(self, request: Request, limit: asyncio.Timeout) -> None:
        """Set whose client it is, and what ends the work for it."""
        self._request, self._limit = request, limit
        self._loop = asyncio.get_running_loop()
        self._looking: asyncio.Task[None] | None = None

    def wait(self) -> None:
        """Look from `AFTER_S` on."""
        self._timer = self._loop.call_later(AFTER_S, self._begin)

    def end(self) -> None:
        """Look no more."""
        self._timer.cancel()
        if self._looking is not None:
            self._looking.cancel()

    def _begin(self) -> None:
        # Who still reads the body is told by that.
        if bodies.is_whole(self._request):
            self._looking = self._loop.create_task(self._look())
        else:
            self.wait()

    async def _look(self) -> None:
        while (await self._request.receive())["type"] != "http.disconnect":
            pass
        self._limit.reschedule(self._loop.time())
