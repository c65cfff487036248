"""A light load generator: a closed loop of clients, each with a connection of its own, in this process.

    ensemble load http://127.0.0.1:8000/classify photographs/*.jpg --clients 8 --seconds 5

Prints a line of JSON. A client sends its next request when it has the answer to the last. Anything but 200 (or OK) is
counted as an error, and no latency is taken of it. An image is sent as it is, or, with `--body`, as that text with the
image in base64 for `BASE64`. With `--repeats` each JPEG is told apart by a comment in it, except for the share of the
requests that sends one of those before once more.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import itertools
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import urlsplit

import grpc
import numpy as np

from deployments.protocol import inference_pb2 as pb
from deployments.protocol import inference_pb2_grpc

PATIENCE_S = 60.0
IMAGE = ("Content-Type: image/jpeg",)


class Tally:
    """What a run has seen, from the end of the warm-up to the end of the run."""

    def __init__(self, warm_up_s: float, seconds: float) -> None:
        """Set the times, seconds from now."""
        self.begin = time.perf_counter() + warm_up_s
        self.end = self.begin + seconds
        self.latencies: list[float] = []
        self.errors = 0
        self.first_error = ""

    def add(self, started: float, error: str | None) -> bool:
        """Count an answer; whether the run goes on."""
        now = time.perf_counter()
        if error is not None:
            self.errors += 1
            self.first_error = self.first_error or error
        elif self.begin <= now <= self.end:
            self.latencies.append(now - started)
        return now < self.end


class HttpClient(asyncio.Protocol):
    """One keep-alive connection; a hand-written parser, since a client library costs more than a fast server."""

    def __init__(self, requests: Iterator[bytes], tally: Tally) -> None:
        """Set the requests to send, complete with their headers, and where answers are counted."""
        self._requests = requests
        self._tally = tally
        self._received = bytearray()
        self._expected = -1
        self._chunked = False
        self._asked = False
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._send()

    def _send(self) -> None:
        self._started = time.perf_counter()
        self._asked = True
        self._transport.write(next(self._requests))

    def data_received(self, data: bytes) -> None:
        """Collect an answer; when it is whole, count it and ask again."""
        self._received += data
        if self._expected < 0:
            head = self._received.find(b"\r\n\r\n")
            if head < 0:
                return
            headers = bytes(self._received[:head]).lower().split(b"\r\n")
            length = next((int(h[15:]) for h in headers if h.startswith(b"content-length:")), None)
            self._chunked = length is None
            self._expected = head + 4 + (length or 0)
        if len(self._received) < self._expected or (self._chunked and not self._received.endswith(b"\r\n0\r\n\r\n")):
            return
        ok = self._received[9:12] == b"200"
        error = None if ok else self._received[: self._expected].decode("latin-1")
        self._received.clear()
        self._expected = -1
        self._asked = False
        if self._tally.add(self._started, error):
            self._send()
        else:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """The end, ours or the server's."""
        if self._asked:
            self._tally.add(self._started, f"the server closed the connection: {exc}")
        if not self.done.done():
            self.done.set_result(None)


def wrapped(image: bytes, template: str | None) -> bytes:
    """The body that a request has for an image: the image, or the template with the image in base64 for `BASE64`."""
    return image if template is None else template.replace("BASE64", base64.b64encode(image).decode()).encode()


def marked(image: bytes, number: int) -> bytes:
    """A JPEG with a number in a comment behind its first marker: other bytes, the same picture."""
    return image[:2] + b"\xff\xfe\x00\x0a" + number.to_bytes(8, "big") + image[2:]


def partly_repeated(images: Sequence[bytes], repeats: float, seed: int = 0) -> Iterator[bytes]:
    """JPEGs without end, none of them sent before except for that share of them."""
    random = Random(seed)
    new = 0
    while True:
        number = random.randrange(new) if new and random.random() < repeats else new
        new = max(new, number + 1)
        yield marked(images[number % len(images)], number)


async def http(
    url: str,
    bodies: Sequence[bytes],
    headers: Sequence[str],
    clients: int,
    tally: Tally,
    repeats: float | None = None,
) -> None:
    """Load an HTTP server with POSTs of these bodies and headers."""
    parts = urlsplit(url)
    head = [f"POST {parts.path or '/'} HTTP/1.1", f"Host: {parts.netloc}", *headers]

    def request(body: bytes) -> bytes:
        return "\r\n".join([*head, f"Content-Length: {len(body)}", "\r\n"]).encode() + body

    requests = [request(body) for body in bodies]
    # One for all clients, so that one repeats what another has sent.
    together = map(request, partly_repeated(bodies, repeats)) if repeats is not None else None
    loop = asyncio.get_running_loop()
    done = []
    for client in range(clients):
        turn = itertools.cycle(requests[client % len(requests) :] + requests[: client % len(requests)])
        order = turn if together is None else together
        _, protocol = await loop.create_connection(
            lambda order=order: HttpClient(order, tally),  # type: ignore[misc]
            parts.hostname or "127.0.0.1",
            parts.port or 80,
        )
        done.append(protocol.done)
    _, silent = await asyncio.wait(done, timeout=tally.end - time.perf_counter() + PATIENCE_S)
    for _ in silent:
        tally.add(tally.end, f"no answer within {PATIENCE_S:.0f} s")


async def open_inference(target: str, images: Sequence[bytes], clients: int, tally: Tally) -> None:
    """Load a gRPC server with the Open Inference Protocol, images as raw contents."""
    requests = []
    for image in images:
        request = pb.ModelInferRequest(model_name="ensemble")
        request.inputs.add(name="image", datatype="BYTES", shape=[1])
        request.raw_input_contents.append(len(image).to_bytes(4, "little") + image)
        requests.append(request)

    async def client(number: int) -> None:
        options = [("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.insecure_channel(target, options) as channel:
            stub = inference_pb2_grpc.GRPCInferenceServiceStub(channel)
            for position in itertools.count(number):
                started = time.perf_counter()
                error = None
                try:
                    await stub.ModelInfer(requests[position % len(requests)], timeout=PATIENCE_S)
                except grpc.aio.AioRpcError as err:
                    error = f"{err.code()}: {err.details()}"
                if not tally.add(started, error):
                    return

    await asyncio.gather(*(client(number) for number in range(clients)))


def run(
    url: str,
    images: Sequence[bytes],
    clients: int,
    seconds: float,
    warm_up_s: float,
    headers: Sequence[str] = IMAGE,
    body: str | None = None,
    repeats: float | None = None,
) -> dict[str, Any]:
    """Load a server and report: requests/s, milliseconds of latency at the median and the 99th percentile, CPU.

    Args:
        url: `http://host:port/path` or `grpc://host:port`.
        images: encoded images, sent in turn.
        clients: how many ask at a time.
        seconds: how long it is measured.
        warm_up_s: how long before that.
        headers: of an HTTP request, `Name: value`.
        body: of an HTTP request, with `BASE64` for the image; None for the image as it is.
        repeats: the share of the requests whose image was sent before; None to send the same images in turn.
    """
    bodies = [wrapped(image, body) for image in images]
    tally = Tally(warm_up_s, seconds)
    started = time.process_time()
    if url.startswith("grpc://"):
        asyncio.run(open_inference(url.removeprefix("grpc://"), images, clients, tally))
    else:
        asyncio.run(http(url, bodies, headers, clients, tally, repeats))
    cpu = time.process_time() - started
    latencies = np.array(tally.latencies or [float("nan")]) * 1000
    return {
        "requests": len(tally.latencies),
        "requests_per_s": len(tally.latencies) / seconds,
        "p50_ms": float(np.percentile(latencies, 50)),
        "p99_ms": float(np.percentile(latencies, 99)),
        "cpu_s": cpu * seconds / (seconds + warm_up_s),
        "errors": tally.errors,
        "first_error": tally.first_error[:300],
    }


def main() -> None:
    """Parse the command line and load."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="http://host:port/path or grpc://host:port")
    parser.add_argument("images", type=Path, nargs="+")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--warm-up", type=float, default=1, help="seconds that are not counted")
    parser.add_argument("--headers", nargs="+", default=IMAGE, metavar="HEADER", help="of an HTTP request")
    parser.add_argument("--body", metavar="TEMPLATE", help="of an HTTP request: text with BASE64 for the image")
    parser.add_argument("--repeats", type=float, metavar="SHARE", help="of JPEGs sent by HTTP that were sent before")
    args = parser.parse_args()
    if args.repeats is not None and (not 0 <= args.repeats <= 1 or args.body is not None or "grpc:" in args.url):
        parser.error("--repeats is a share from 0 to 1, of JPEGs sent by HTTP without --body")
    images = [path.read_bytes() for path in args.images]
    result = run(args.url, images, args.clients, args.seconds, args.warm_up, args.headers, args.body, args.repeats)
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
