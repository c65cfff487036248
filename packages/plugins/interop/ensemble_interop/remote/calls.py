"""Calls to one endpoint of a model server by HTTP or gRPC: kept connections, bounded responses, typed failures."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, TypeVar
from urllib.parse import urlsplit

import msgspec
from google.protobuf.message import DecodeError, Message

from deployments.contract.payload import Images
from deployments.contract.settings import MIB
from ensemble_interop.remote import client as errors
from ensemble_interop.remote.config import LONGEST_MS, RemoteConfig
from ensemble_interop.remote.tensors import Binding, ModelMetadata
from ensemble_serving.transports import NoResponse, Request, Response, ResponseTooLarge, Server, Transport, connect

# Values in JSON besides the scores. To parse millions of others would hold the event loop up for seconds.
MOST_VALUES = 128 * 1024
MAX_QUOTED = 200
JSON = {"content-type": "application/json"}
# The errors of statuses; every other failure is a `ServerError`.
OF_HTTP: dict[int, type[errors.CallError]] = {
    **dict.fromkeys((400, 413, 415, 422), errors.RequestRejected),
    429: errors.Busy,
    **dict.fromkeys((502, 503, 504), errors.Unavailable),
}
# By numbers: https://grpc.github.io/grpc/core/md_doc_statuscodes.html
OF_GRPC: dict[int, type[errors.CallError]] = {
    **{3: errors.RequestRejected, 4: errors.TimedOut, 8: errors.Busy},
    **{10: errors.Unavailable, 11: errors.RequestRejected, 14: errors.Unavailable},
}

M = TypeVar("M", bound=Message)
V = TypeVar("V")


class Connection(ABC):
    """Calls one endpoint. Its methods raise `CallError`.

    Attributes:
        bytes_per_score: the most bytes of a score in a response.
    """

    bytes_per_score: ClassVar[int]

    def __init__(self, config: RemoteConfig, ip: str, max_scores: int) -> None:
        """Set the member's configuration, the IP address, and how many scores a response holds at most."""
        self._config, self._ip = config, ip
        self._most_bytes, self._most_values = MIB + self.bytes_per_score * max_scores, MOST_VALUES + max_scores
        self._transport: Transport | None = None

    @abstractmethod
    async def describe(self, timeout_s: float) -> ModelMetadata:
        """Read the model's tensors; raises CallError if it is not ready, IncompatibleModel if it can't be a member."""

    @abstractmethod
    async def infer(
        self, binding: Binding, images: Images, headers: Mapping[str, str], timeout_s: float
    ) -> errors.Output:
        """Compute the output for images: an array as `convert_pixels` makes it, or encoded images."""

    async def _send(self, request: Request, timeout_s: float) -> Response:
        """Send a request; raises CallError if there is no response."""
        transport = self._transport = self._transport or self._connect()
        try:
            async with asyncio.timeout(timeout_s):
                return await transport.send(request)
        except TimeoutError:
            raise errors.TimedOut("no response in time") from None
        except ResponseTooLarge as err:
            raise errors.InvalidResponse(str(err)) from err
        except NoResponse as err:
            raise errors.Unavailable(str(err)) from err

    def _connect(self) -> Transport:
        # The certificate is for the host's name, though an address is called.
        config = self._config
        try:
            server = Server(
                config.url,
                timeout_s=LONGEST_MS / 1000,
                ca_file=config.ca_file,
                cert_file=config.cert_file,
                key_file=config.key_file,
                address=self._ip,
                most_bytes=self._most_bytes,
            )
            return connect(server)
        except OSError as err:
            raise errors.ServerError(str(err)) from err

    async def close(self) -> None:
        """Close the connections; the next call opens others."""
        transport, self._transport = self._transport, None
        if transport is not None:
            await transport.close()


class HttpConnection(Connection):
    """Calls one endpoint by HTTP."""

    bytes_per_score = 32

    async def _call(
        self, path: str, timeout_s: float, body: bytes | None = None, headers: Mapping[str, str] = {}
    ) -> Response:
        """Send a GET, or POST a body. Raises CallError."""
        sent = {"accept-encoding": "identity", **headers, **self._config.authorization()}
        method, prefix = "GET" if body is None else "POST", urlsplit(self._config.url).path.rstrip("/")
        request = Request(f"{prefix}{path}", body or b"", tuple(sent.items()), method)
        response = await self._send(request, timeout_s)
        if response.status == 200:
            return response
        text = response.body[:MAX_QUOTED].decode("utf-8", "replace")
        raise OF_HTTP.get(response.status, errors.ServerError)(f"HTTP {response.status}: {text}")


class GrpcConnection(Connection):
    """Calls one endpoint by gRPC; a subclass sets the `service`."""

    service: ClassVar[str]
    bytes_per_score = 10

    async def _call(
        self, method: str, message: Message, response: type[M], timeout_s: float, headers: Mapping[str, str] = {}
    ) -> M:
        """Call a method of the service; `timeout_s` travels to the server as the deadline. Raises CallError."""
        sent, path = {**headers, **self._config.authorization()}, f"/{self.service}/{method}"
        request = Request(path, message.SerializeToString(), tuple(sent.items()), timeout_s=timeout_s)
        answer = await self._send(request, timeout_s)
        if answer.ok:
            try:
                return response.FromString(answer.body)
            except DecodeError as err:
                raise errors.InvalidResponse(f"the response is no {response.DESCRIPTOR.name}") from err
        details = answer.body.decode("utf-8", "replace")[:MAX_QUOTED]
        raise OF_GRPC.get(answer.status, errors.ServerError)(f"gRPC status {answer.status}: {details}")


def connect_to(config: RemoteConfig, ip: str, max_scores: int) -> Connection:
    """Make what calls the endpoint at an IP address; its responses have at most `max_scores` scores."""
    kind: type[Connection] = config.over_grpc if config.is_grpc else config.over_http
    return kind(config, ip, max_scores)


def parse(body: bytes, kind: type[V], most: int = MOST_VALUES) -> V:
    """Decode a body of JSON; raises InvalidResponse for a body of another kind, or of more values."""
    if body.count(b",") > most:
        raise errors.InvalidResponse(f"the response has more than {most} values")
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as err:
        raise errors.InvalidResponse(f"the response is not the expected JSON: {err}") from err
