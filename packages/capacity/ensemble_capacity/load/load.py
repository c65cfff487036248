"""The load of a server: closed and open loops, and the requests."""

import asyncio
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from random import Random

import numpy as np

from ensemble_capacity.load.protocols import RequestBuilder
from ensemble_serving.transports import Request, Response, Server, Transport, connect

# Requests of an open loop that find no free connection wait for one.
MOST_CONNECTIONS = 1000
# Over gRPC calls share connections; HAProxy's and others' default is 100 calls on each.
CALLS_A_CONNECTION, MOST_CHANNELS = 50, 8
# Without a pause, a client that finds no server would try thousands of times per second.
PAUSE_S = 0.1


@dataclass(frozen=True)
class Arrivals:
    """Arrivals of a Poisson process.

    Attributes:
        rate: requests per second, on average.
        times: given ones, seconds from the first, which replace the process.
        seed: the same one gives the same times.
    """

    rate: float
    times: tuple[float, ...] | None = None
    seed: int = 0

    def offsets(self) -> Iterator[float]:
        """Yield the times at which requests are due, seconds from the begin; without end unless they are given."""
        if self.times is not None:
            yield from self.times
            return
        draw, due = np.random.default_rng(self.seed), 0.0
        while True:
            due += draw.exponential(1 / self.rate)
            yield due


@dataclass(frozen=True)
class Closed:
    """A closed loop: each client sends its next request when it has the response to its last.

    Attributes:
        concurrency: how many clients there are.
    """

    concurrency: int

    async def rest(self, response: Response | None) -> bool:
        """Wait after a request that failed, None if no response came; tell whether a client sends the request again."""
        # Also without a pause, the other clients get a turn.
        await asyncio.sleep(PAUSE_S if response is None else 0.0)
        return False


Mode = Closed | Arrivals


@dataclass(frozen=True)
class Target:
    """A server, and the requests that it gets.

    Attributes:
        protocol: makes the requests.
        images: encoded; they take turns.
        labels: theirs, by which answers of `/classify` are right or wrong; empty if they are not known, or `batch` is
            not 1.
        batch: images per request.
        repeats: the share of the requests whose image was sent before, while all others are new; None to send the same
            images in turn. Of JPEGs.
        key: that the server requires; empty for none.
        ca_file: certificates to trust.
        connections: the most of them; None for what the transport needs.
    """

    url: str
    protocol: RequestBuilder
    images: tuple[bytes, ...]
    labels: tuple[str, ...] = ()
    batch: int = 1
    repeats: float | None = None
    key: str = ""
    ca_file: Path | None = None
    timeout_s: float = 60.0
    connections: int | None = None

    @property
    def is_grpc(self) -> bool:
        """Whether requests go over gRPC."""
        return self.url.startswith("grpc")

    def connect(self, concurrency: int | None = None) -> Transport:
        """Make a transport to the server, for `concurrency` requests at a time, or for any number."""
        channels = MOST_CHANNELS if concurrency is None else min(MOST_CHANNELS, -(-concurrency // CALLS_A_CONNECTION))
        most = self.connections or (channels if self.is_grpc else MOST_CONNECTIONS)
        headers = (("authorization", f"Bearer {self.key}"),) if self.key else ()
        return connect(Server(self.url, most, self.timeout_s, headers, self.ca_file))

    def requests(self) -> Iterator[Request]:
        """Yield a request for each group of `batch` images; the first images fill the last group up."""
        count = len(self.images)
        for start in range(0, count, self.batch):
            yield self.protocol.request([self.images[(start + i) % count] for i in range(self.batch)])

    def turns(self) -> Iterator[tuple[Request, str]]:
        """Return requests without end, each with its image's label, or an empty one."""
        if self.repeats is not None:
            return ((self.protocol.request([each]), "") for each in partly_repeated(self.images, self.repeats))
        requests = list(self.requests())
        return cycle(list(zip(requests, self.labels or [""] * len(requests), strict=True)))


def marked(image: bytes, number: int) -> bytes:
    """Put a number of 64 bits in a comment behind a JPEG's first marker: other bytes, the same picture."""
    return image[:2] + b"\xff\xfe\x00\x0a" + number.to_bytes(8, "big") + image[2:]


def partly_repeated(images: Sequence[bytes], repeats: float) -> Iterator[bytes]:
    """Yield JPEGs without end, none of them sent before by this load or another, except for that share of them."""
    random, new, first = Random(0), 0, secrets.randbits(64)
    while True:
        number = random.randrange(new) if new and random.random() < repeats else new
        new = max(new, number + 1)
        yield marked(images[number % len(images)], (first + number) % 2**64)
