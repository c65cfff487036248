"""A single request, without an event loop of the caller's."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

from ensemble_serving.transports.connect import connect
from ensemble_serving.transports.request import NoResponse, Request, Response


def once(url: str, request: Request, *, timeout_s: float = 60.0, ca_file: Path | None = None) -> Response:
    """Send a request on a connection of its own and return the response.

    Args:
        url: of the server, see `connect`.
        request: that is sent.
        timeout_s: seconds.
        ca_file: certificates to trust, PEM.

    Raises:
        NoResponse: there is none.
    """

    async def send() -> Response:
        transport = connect(url, timeout_s=timeout_s, ca_file=ca_file)
        try:
            return await transport.send(request)
        finally:
            await transport.close()

    return asyncio.run(send())


def is_ready(url: str) -> bool:
    """Tell whether the model server at this root reports by the Open Inference Protocol that it is ready."""
    with suppress(NoResponse):
        return once(url, Request("/v2/health/ready", method="GET"), timeout_s=5.0).ok
    return False
