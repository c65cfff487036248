"""Sends inputs, and judges what comes back."""

from __future__ import annotations

import asyncio
import json
import re
import time
from contextlib import suppress
from typing import Any, NamedTuple

import grpc

from lab.faults.fuzz.inputs import Input

# The server's deadline is 30 s, and so is its patience with a connection on which nothing comes.
DEADLINE_S, GRACE_S = 30.0, 5.0
MOST_READ = 4 * 1024 * 1024
STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})")
RETRY_AFTER = re.compile(rb"\r\nretry-after: *\d", re.IGNORECASE)
# Statuses by which the server says that itself failed, and not the caller.
GRPC_FAULTS = frozenset({"UNKNOWN", "INTERNAL", "DATA_LOSS", "ABORTED", "UNAVAILABLE", "DEADLINE_EXCEEDED"})
# HTTP/2 refuses headers that are too large by ending the connection.
ENDED = re.compile("GOAWAY received; Error code: (9|11)")
# The client has no limits of its own, makes no second attempt, and shares no connection.
CHANNEL = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_metadata_size", 10**6),
    ("grpc.enable_retries", 0),
    ("grpc.use_local_subchannel_pool", 1),
)
PACKINGS = {"": None, "gzip": grpc.Compression.Gzip, "deflate": grpc.Compression.Deflate}
# Between two pieces of a request, so that they don't arrive as one.
PAUSE_S = 0.001


class Outcome(NamedTuple):
    """What became of an input: the status or how its connection ended, the time, and what the server did wrong."""

    status: str
    seconds: float
    failure: str | None


class Sender:
    """Sends inputs to a server, each on a connection of its own, because some inputs end their connection."""

    def __init__(self, host: str, http_port: int, grpc_port: int) -> None:
        """Set where the server listens."""
        self._http, self._grpc = (host, http_port), (host, grpc_port)

    async def send(self, sent: Input) -> Outcome:
        """Send an input; the server has its deadline and some grace to answer."""
        began = time.monotonic()
        way = {"http": self._by_http, "grpc": self._by_grpc, "http2": self._by_http2}[sent.way]
        try:
            async with asyncio.timeout(DEADLINE_S + GRACE_S):
                status, failure = await way(sent)
        except TimeoutError:
            status, failure = "hangs", f"no answer in {DEADLINE_S + GRACE_S:.0f} s"
        except ConnectionRefusedError:
            status, failure = "refused", "the connection was refused"
        return Outcome(status, time.monotonic() - began, failure)

    async def _by_grpc(self, sent: Input) -> tuple[str, str | None]:
        async with grpc.aio.insecure_channel("{}:{}".format(*self._grpc), options=CHANNEL) as channel:
            call: Any = channel.unary_unary(sent.where)
            timeout, compression = DEADLINE_S + GRACE_S, PACKINGS[sent.packing]
            try:
                await call(sent.content, metadata=sent.metadata, timeout=timeout, compression=compression)
            except grpc.aio.AioRpcError as err:
                name, details = err.code().name, err.details() or ""
                if ENDED.search(details):
                    return "connection ended", None
                return name, f"{name} {details}" if name in GRPC_FAULTS else None
            return "OK", None

    async def _by_http2(self, sent: Input) -> tuple[str, str | None]:
        return ("frames" if len(await exchange(self._grpc, sent)) > 9 else "closed"), None

    async def _by_http(self, sent: Input) -> tuple[str, str | None]:
        answer = await exchange(self._http, sent)
        found = STATUS.match(answer)
        if found is None:
            return "closed", "the connection was closed without an answer" if sent.whole else None
        status = int(found[1])
        is_refusal = status == 503 and RETRY_AFTER.search(answer) is not None
        is_fault = status >= 500 and status != 505 and not is_refusal
        if is_fault or (sent.documented and status >= 400 and not is_typed(answer)):
            return str(status), f"{status} {answer[-300:]!r}"
        return str(status), None


async def exchange(where: tuple[str, int], sent: Input) -> bytes:
    """Send bytes on a connection of their own, and return what comes until the server closes it."""
    reader, writer = await asyncio.open_connection(*where)
    got = bytearray()
    sending = asyncio.ensure_future(_write(writer, sent))
    try:
        with suppress(ConnectionError):
            while len(got) < MOST_READ and (more := await reader.read(65536)):
                got += more
    finally:
        sending.cancel()
        writer.close()
        with suppress(OSError, asyncio.CancelledError):
            await sending
    return bytes(got)


async def _write(writer: asyncio.StreamWriter, sent: Input) -> None:
    with suppress(OSError):
        piece = -(-len(sent.content) // sent.pieces) or 1
        for start in range(0, len(sent.content), piece):
            writer.write(sent.content[start : start + piece])
            await writer.drain()
            if sent.pieces > 1:
                await asyncio.sleep(PAUSE_S)
        if not sent.whole:
            # The server need not wait for the rest.
            writer.write_eof()


def is_typed(answer: bytes) -> bool:
    """Tell whether an error has a JSON body with an `error`, or with Seldon's `status`."""
    _, _, body = answer.rpartition(b"\r\n\r\n")
    try:
        told = json.loads(body)
    except ValueError:
        return False
    return isinstance(told, dict) and bool({"error", "status"} & told.keys())
