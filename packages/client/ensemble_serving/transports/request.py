"""A request, its response, and what carries them."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

# Names in lower case; over gRPC the metadata or the trailers.
Headers = tuple[tuple[str, str], ...]


class NoResponse(ConnectionError):
    """The server gave no response: there was no connection to it, or the connection ended."""


class NoConnection(NoResponse):
    """There is no connection to the server, so it did not get the request."""


class ResponseTooLarge(NoResponse):
    """The response has more bytes than it may have; the rest was not read."""


class ResponseTimeout(NoResponse, TimeoutError):
    """The response did not come within the time-out."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request, ready to be sent.

    Attributes:
        path: of the URL, with its query; over gRPC the method, as in `/package.Service/Method`.
        body: over gRPC the serialized message.
        headers: names in lower case; over gRPC the metadata.
        method: of HTTP.
        timeout_s: over gRPC the server's deadline, seconds; default: the transport's time-out.
    """

    path: str
    body: bytes = b""
    headers: Headers = ()
    method: str = "POST"
    timeout_s: float | None = None


@dataclass(frozen=True, slots=True)
class Response:
    """What a server responded.

    Attributes:
        status: the HTTP status, or the number of the gRPC status.
        body: over gRPC the serialized message, or the details of an error.
        headers: names in lower case; over gRPC the trailers of an error.
        sent: when the request was written, or when the call over gRPC began, seconds of `time.perf_counter`.
        at: when the last byte of the response came, likewise.
    """

    status: int
    body: bytes
    headers: Headers
    sent: float
    at: float

    @property
    def ok(self) -> bool:
        """Whether the request succeeded: 2xx over HTTP, OK over gRPC."""
        return self.status == 0 or 200 <= self.status < 300

    def header(self, name: str) -> str | None:
        """Return the first header of this name, in lower case."""
        return next((value for key, value in self.headers if key == name), None)

    @property
    def retry_after_s(self) -> float | None:
        """When the same request may be sent again by the response, seconds from now; None if it has no such field.

        To the millisecond by `retry_after_ms` in this application's JSON or `grpc-retry-pushback-ms`, else by the whole
        seconds of `Retry-After`.
        """
        try:
            if (pushback := self.header("grpc-retry-pushback-ms")) is not None:
                return max(0.0, float(pushback)) / 1000
            if (seconds := self.header("retry-after")) is None:
                return None
            with suppress(ValueError, KeyError, TypeError):
                return max(0.0, float(json.loads(self.body)["error"]["retry_after_ms"])) / 1000
            return max(0.0, float(seconds))
        except ValueError:
            # A date, which this application never sends.
            return None


class Transport(Protocol):
    """Carries requests to one server over connections that are kept."""

    def send(self, request: Request) -> asyncio.Future[Response]:
        """Send a request at once; cancelling the future disconnects.

        Returns:
            A future of the response, or of a `NoResponse`.
        """

    async def close(self) -> None:
        """Close every connection; requests under way end with `NoResponse`."""
