"""A single request to a server."""

from __future__ import annotations

import asyncio

from ensemble_serving.transports import Request, Response, Server, connect


def once(url: str, request: Request, timeout_s: float = 60.0) -> Response:
    """Send a request on a connection of its own and return the response; raise NoResponse if there is none."""

    async def send() -> Response:
        transport = connect(Server(url, timeout_s=timeout_s))
        try:
            return await transport.send(request)
        finally:
            await transport.close()

    return asyncio.run(send())
