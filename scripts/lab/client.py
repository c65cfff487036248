"""The HTTP client of the laboratory's loads: a connection that costs less than what is measured."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import httpx


class Connection:
    """A keep-alive HTTP/1.1 connection to `/classify`; it connects again after it was lost."""

    def __init__(self, host: str, port: int, timeout_s: float | None = None, key: str = "") -> None:
        """Set the server, how long a request may take, None for as long as it takes, and the key that is shown."""
        self._host, self._port, self._timeout_s = host, port, timeout_s
        self._shown = f"Authorization: Bearer {key}\r\n" if key else ""
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def post(self, image: bytes) -> tuple[int, bytes]:
        """Send an image.

        Returns:
            The status and the body of the answer; 0 and an empty JSON object where there was no answer.
        """
        fields = f"Host: {self._host}\r\nContent-Type: image/jpeg\r\nContent-Length: {len(image)}"
        head = f"POST /classify HTTP/1.1\r\n{self._shown}{fields}\r\n\r\n"
        try:
            async with asyncio.timeout(self._timeout_s):
                if self._streams is None:
                    self._streams = await asyncio.open_connection(self._host, self._port)
                reader, writer = self._streams
                writer.write(head.encode() + image)
                received = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = int(received.partition(b"content-length:")[2].split(b"\r\n", 1)[0])
                answer = await reader.readexactly(length)
                status = int(received[9:12])
        except (OSError, EOFError, ValueError):
            self.close()
            return 0, b"{}"
        if b"connection: close" in received:
            self.close()
        return status, answer

    def close(self) -> None:
        """End the connection."""
        if self._streams is not None:
            self._streams[1].close()
        self._streams = None


def is_ready(url: str) -> bool:
    """Whether the server with this root is ready."""
    with suppress(httpx.HTTPError):
        return httpx.get(f"{url}/v2/health/ready", timeout=5).status_code == httpx.codes.OK
    return False
