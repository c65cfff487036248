"""HTTP to one endpoint of a model server: connections that are kept, bounded responses, typed failures."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import httpx
import msgspec

from deployments.contract.settings import MIB
from ensemble_remote import client as errors
from ensemble_remote.config import RemoteConfig

# Bytes of a score in JSON.
BYTES_PER_SCORE = 32
MAX_QUOTED = 200
JSON = {"content-type": "application/json"}


class HttpClient:
    """Calls one endpoint by HTTP."""

    def __init__(self, config: RemoteConfig, ip: str, max_scores: int) -> None:
        """Set the member's configuration, the IP address, and how many scores a response holds at most."""
        self._config, self._ip = config, ip
        self._max_bytes = MIB + BYTES_PER_SCORE * max_scores
        self._client: httpx.AsyncClient | None = None

    async def _call(
        self, path: str, timeout_s: float, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> tuple[Mapping[str, str], bytes]:
        """Send a GET, or POST a body; return the response's headers and body. Raise CallError."""
        client = self._client = self._client or self._connect()
        # The certificate is for the host's name, though an address is called.
        request = client.build_request(
            "GET" if body is None else "POST",
            path,
            content=body,
            headers={**(headers or {}), **self._config.authorization()},
            extensions={"sni_hostname": self._config.host},
        )
        try:
            async with asyncio.timeout(timeout_s):
                response = await client.send(request, stream=True)
                try:
                    content = await self._read(response)
                finally:
                    await response.aclose()
        except TimeoutError:
            raise errors.TimedOut("no response in time") from None
        # A client that was closed meanwhile raises RuntimeError.
        except (httpx.TransportError, RuntimeError) as err:
            raise errors.Unavailable(f"{type(err).__name__}: {err}") from err
        except httpx.HTTPError as err:
            raise errors.ServerError(f"{type(err).__name__}: {err}") from err
        if response.status_code != httpx.codes.OK:
            raise _error(response.status_code, content)
        return response.headers, content

    async def _read(self, response: httpx.Response) -> bytes:
        content = bytearray()
        async for part in response.aiter_raw():
            content += part
            if len(content) > self._max_bytes:
                raise errors.InvalidResponse(f"the response has more than {self._max_bytes} bytes")
        return bytes(content)

    def _connect(self) -> httpx.AsyncClient:
        config = self._config
        scheme = "https" if config.is_tls else "http"
        address = f"[{self._ip}]" if ":" in self._ip else self._ip
        return httpx.AsyncClient(
            base_url=f"{scheme}://{address}:{config.port}{config.path}",
            headers={"host": config.authority, "accept-encoding": "identity"},
            verify=config.tls() if config.is_tls else False,
            # A proxy or a password in this machine's environment is not meant for this member.
            trust_env=False,
            timeout=None,  # noqa: S113 - `_call` limits the whole call
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=32),
        )

    async def close(self) -> None:
        """See `Client.close`."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()


def parse(body: bytes, decode: Callable[[bytes], Any]) -> Any:
    """Decode a body by a decoder of msgspec; raises InvalidResponse if the body is something else."""
    try:
        return decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as err:
        raise errors.InvalidResponse(f"the response is not the expected JSON: {err}") from err


def _error(status: int, content: bytes) -> errors.CallError:
    text = f"HTTP {status}: {content[:MAX_QUOTED].decode('utf-8', 'replace')}"
    if status in {502, 503, 504}:
        return errors.Unavailable(text)
    if status == httpx.codes.TOO_MANY_REQUESTS:
        return errors.Busy(text)
    return errors.RequestRejected(text) if status in {400, 413, 415, 422} else errors.ServerError(text)
