"""gRPC to one endpoint of a model server: a channel that is kept, bounded responses, typed failures."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import ClassVar, TypeVar

import grpc
from google.protobuf.message import Message

from deployments.contract.settings import MIB
from ensemble_remote import client as errors
from ensemble_remote.config import RemoteConfig

Code = grpc.StatusCode
MAX_SENT = 1024 * MIB
MAX_QUOTED = 200
# Bytes of a score in a message.
BYTES_PER_SCORE = 16
RECONNECT_MIN_MS, RECONNECT_MAX_MS = 100, 2000

M = TypeVar("M", bound=Message)


class GrpcClient:
    """Calls one endpoint by gRPC; a subclass sets the `service`."""

    service: ClassVar[str]

    def __init__(self, config: RemoteConfig, ip: str, max_scores: int) -> None:
        """Set the member's configuration, the IP address, and how many scores a response holds at most."""
        self._config, self._ip = config, ip
        self._max_bytes = MIB + BYTES_PER_SCORE * max_scores
        self._channel: grpc.aio.Channel | None = None

    async def _call(
        self, method: str, request: Message, response: type[M], timeout_s: float, headers: Mapping[str, str] = {}
    ) -> M:
        """Call a method of the service; `timeout_s` travels to the server as the deadline. Raises CallError."""
        channel = self._channel = self._channel or self._connect()
        call = channel.unary_unary(
            f"/{self.service}/{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=response.FromString,
        )
        metadata = tuple({**headers, **self._config.authorization()}.items())
        try:
            answer: M = await call(request, timeout=max(timeout_s, 0.0), metadata=metadata)
        except grpc.aio.AioRpcError as err:
            raise _error(err) from err
        except grpc.aio.UsageError as err:
            raise errors.Unavailable("the channel was closed meanwhile") from err
        except asyncio.CancelledError:
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise
            raise errors.Unavailable("the channel was closed meanwhile") from None
        return answer

    def _connect(self) -> grpc.aio.Channel:
        config = self._config
        target = f"ipv6:[{self._ip}]:{config.port}" if ":" in self._ip else f"ipv4:{self._ip}:{config.port}"
        options = [
            # The certificate is for the host's name, though an address is called.
            ("grpc.default_authority", config.authority),
            ("grpc.max_receive_message_length", self._max_bytes),
            ("grpc.max_send_message_length", MAX_SENT),
            ("grpc.enable_http_proxy", 0),
            ("grpc.enable_retries", 0),
            ("grpc.initial_reconnect_backoff_ms", RECONNECT_MIN_MS),
            ("grpc.min_reconnect_backoff_ms", RECONNECT_MIN_MS),
            ("grpc.max_reconnect_backoff_ms", RECONNECT_MAX_MS),
            # Otherwise a new channel to this address would share the connection of the hanging one that it replaces.
            ("grpc.use_local_subchannel_pool", 1),
        ]
        if not config.is_tls:
            return grpc.aio.insecure_channel(target, options)
        credentials = grpc.ssl_channel_credentials(*config.certificates())
        return grpc.aio.secure_channel(target, credentials, options)

    async def close(self) -> None:
        """See `Client.close`."""
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()


def _error(error: grpc.aio.AioRpcError) -> errors.CallError:
    code, details = error.code(), error.details() or ""
    text = f"{code.name}: {details[:MAX_QUOTED]}"
    if code is Code.DEADLINE_EXCEEDED:
        return errors.TimedOut(text)
    if code is Code.RESOURCE_EXHAUSTED:
        # The code stands for a busy server, and for a response that is larger than we accept.
        return errors.InvalidResponse(text) if "larger than max" in details else errors.Busy(text)
    if code in {Code.UNAVAILABLE, Code.ABORTED}:
        return errors.Unavailable(text)
    return (
        errors.RequestRejected(text) if code in {Code.INVALID_ARGUMENT, Code.OUT_OF_RANGE} else errors.ServerError(text)
    )
