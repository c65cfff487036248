"""A model server's address by gRPC: one kept channel, bounded answers, typed failures."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import grpc

from deployments.contract.settings import MIB
from deployments.remote.credentials import Token, contents
from deployments.remote.failures import Busy, CallError, Failed, Late, Nonsense, Refused, Unreachable
from deployments.remote.settings import RemoteConfig

Code = grpc.StatusCode
REFUSED = frozenset({Code.INVALID_ARGUMENT, Code.OUT_OF_RANGE})
MOST_SENT = 1024 * MIB
MOST_QUOTED = 200
BYTES_A_SCORE = 16
RECONNECT_MS = (100, 2000)


class Channel:
    """One address, by gRPC."""

    def __init__(self, config: RemoteConfig, where: str, token: Token, scores: int) -> None:
        """Set the IP address, the token, and the most scores that an answer holds."""
        self._config, self._where, self._token = config, where, token
        self._most = MIB + BYTES_A_SCORE * scores
        self._channel: grpc.aio.Channel | None = None

    async def call(
        self, method: str, request: Any, answer: Any, timeout_s: float, headers: Mapping[str, str] | None = None
    ) -> Any:
        """The answer to a request.

        Args:
            method: as in `/package.Service/Method`.
            request: a message.
            answer: the class of the message that is answered.
            timeout_s: travels to the server as the call's deadline.
            headers: metadata.

        Raises:
            CallError: there is none.
        """
        channel = self._channel = self._channel or self._connected()
        ask = channel.unary_unary(
            method, request_serializer=type(request).SerializeToString, response_deserializer=answer.FromString
        )
        metadata = tuple({**(headers or {}), **self._token.header()}.items())
        try:
            return await ask(request, timeout=max(timeout_s, 0.0), metadata=metadata)
        except grpc.aio.AioRpcError as err:
            raise _failure(err) from err
        except grpc.aio.UsageError as err:
            raise Unreachable("the channel was closed meanwhile") from err
        except asyncio.CancelledError:
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise
            raise Unreachable("the channel was closed meanwhile") from None

    def _connected(self) -> grpc.aio.Channel:
        config = self._config
        first, most = RECONNECT_MS
        target = f"ipv6:[{self._where}]:{config.port}" if ":" in self._where else f"ipv4:{self._where}:{config.port}"
        options = [
            # The certificate is the name's, though we call an address.
            ("grpc.default_authority", f"{config.host}:{config.port}"),
            ("grpc.max_receive_message_length", self._most),
            ("grpc.max_send_message_length", MOST_SENT),
            ("grpc.enable_http_proxy", 0),
            ("grpc.enable_retries", 0),
            ("grpc.initial_reconnect_backoff_ms", first),
            ("grpc.min_reconnect_backoff_ms", first),
            ("grpc.max_reconnect_backoff_ms", most),
            # Or another channel to this address, which a hanging one was closed for, would share its connection.
            ("grpc.use_local_subchannel_pool", 1),
        ]
        if not config.is_tls:
            return grpc.aio.insecure_channel(target, options)
        credentials = grpc.ssl_channel_credentials(
            contents(config.ca_file), contents(config.key_file), contents(config.cert_file)
        )
        return grpc.aio.secure_channel(target, credentials, options)

    async def close(self) -> None:
        """Close the connection; the next call opens another."""
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()


def _failure(error: grpc.aio.AioRpcError) -> CallError:
    code = error.code()
    told = f"{code.name}: {(error.details() or '')[:MOST_QUOTED]}"
    if code is Code.DEADLINE_EXCEEDED:
        return Late(told)
    if code is Code.RESOURCE_EXHAUSTED:
        # It is the same code for a server that is busy and for an answer that is larger than we take.
        return Nonsense(told) if "larger than max" in told else Busy(told)
    if code in {Code.UNAVAILABLE, Code.ABORTED}:
        return Unreachable(told)
    return Refused(told) if code in REFUSED else Failed(told)
