"""A model server's address by HTTP: kept connections, bounded answers, typed failures."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import httpx
import msgspec

from deployments.contract.settings import MIB
from deployments.remote.credentials import Token, tls
from deployments.remote.failures import Busy, CallError, Failed, Late, Nonsense, Refused, Unreachable
from deployments.remote.settings import RemoteConfig

# Bytes of a score in JSON, and of what an answer has besides scores.
BYTES_A_SCORE = 32
MOST_QUOTED = 200
UNAVAILABLE = frozenset({502, 503, 504})


class Http:
    """One address, by HTTP."""

    def __init__(self, config: RemoteConfig, where: str, token: Token) -> None:
        """Set the IP address, and the token that every call brings along."""
        self._config, self._where, self._token = config, where, token
        self._client: httpx.AsyncClient | None = None

    async def get(self, path: str, timeout_s: float) -> tuple[Mapping[str, str], bytes]:
        """GET; the answer's headers and its body. Raises a CallError."""
        return await self._call("GET", path, None, {}, timeout_s, 4 * MIB)

    async def post(
        self, path: str, body: bytes, headers: Mapping[str, str], timeout_s: float, scores: int
    ) -> tuple[Mapping[str, str], bytes]:
        """POST a body; of the answer, no more is read than so many scores may take."""
        return await self._call("POST", path, body, headers, timeout_s, MIB + BYTES_A_SCORE * scores)

    async def _call(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str], timeout_s: float, most: int
    ) -> tuple[Mapping[str, str], bytes]:
        client = self._client = self._client or self._connected()
        given = {**headers, **self._token.header()}
        # The certificate is the name's, though we call an address.
        request = client.build_request(
            method, path, content=body, headers=given, extensions={"sni_hostname": self._config.host}
        )
        try:
            async with asyncio.timeout(timeout_s):
                response = await client.send(request, stream=True)
                try:
                    content = await _bounded(response, most)
                finally:
                    await response.aclose()
        except TimeoutError:
            raise Late("no answer in its time") from None
        # RuntimeError is what a client raises that has been closed meanwhile.
        except (httpx.TransportError, RuntimeError) as err:
            raise Unreachable(f"{type(err).__name__}: {err}") from err
        except httpx.HTTPError as err:
            raise Failed(f"{type(err).__name__}: {err}") from err
        if response.status_code != httpx.codes.OK:
            raise _failure(response.status_code, content)
        return response.headers, content

    def _connected(self) -> httpx.AsyncClient:
        config = self._config
        scheme = "https" if config.is_tls else "http"
        address = f"[{self._where}]" if ":" in self._where else self._where
        host = f"[{config.host}]" if ":" in config.host else config.host
        return httpx.AsyncClient(
            base_url=f"{scheme}://{address}:{config.port}{config.path}",
            headers={"host": f"{host}:{config.port}", "accept-encoding": "identity"},
            verify=tls(config) if config.is_tls else False,
            # Neither a proxy nor a password of this machine's environment is this member's.
            trust_env=False,
            timeout=None,  # noqa: S113 - `_call` has one for the whole of it
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=32),
        )

    async def close(self) -> None:
        """Close the connections; the next call opens others."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()


def decoded(body: bytes, kind: Callable[[bytes], Any]) -> Any:
    """A body by a decoder of msgspec's; raises Nonsense if it is something else."""
    try:
        return kind(body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as err:
        raise Nonsense(f"it answered no such JSON: {err}") from err


async def _bounded(response: httpx.Response, most: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for part in response.aiter_raw():
        size += len(part)
        if size > most:
            raise Nonsense(f"it answered more than {most} bytes")
        parts.append(part)
    return b"".join(parts)


def _failure(status: int, content: bytes) -> CallError:
    told = f"HTTP {status}: {content[:MOST_QUOTED].decode('utf-8', 'replace')}"
    if status in UNAVAILABLE:
        return Unreachable(told)
    if status == httpx.codes.TOO_MANY_REQUESTS:
        return Busy(told)
    if status in {400, 413, 415, 422}:
        return Refused(told)
    return Failed(told)
