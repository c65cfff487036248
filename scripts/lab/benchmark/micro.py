"""The levers that need no server, timed in this process."""

from __future__ import annotations

import asyncio
import pickle
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np
from fastapi import FastAPI, Query, Request
from starlette.types import Message

from deployments.contract.answer import Answer, Classification, ClassProbability
from deployments.contract.batch import Batch
from deployments.contract.options import Options
from deployments.contract.preprocessing import Preprocessing
from deployments.ingress.http.server import HttpServer
from deployments.ingress.ingress import Ingress
from deployments.ingress.service import Service
from deployments.ingress.settings import IngressSettings
from deployments.observe.observer import Observer
from deployments.observe.tracing import Tracing
from deployments.transformer.decoding import decode, read_header
from deployments.transformer.transformer import TransformerSettings
from scripts.lab.benchmark.workloads import CIFAR_SIZE, IMAGENET_SIZE, workload

MICRO_S = 1.0


@dataclass(frozen=True)
class Result:
    """What a lever gave."""

    name: str
    workload: str
    placement: str
    clients: int | None
    requests_per_s: float | None
    ratio: float

    @property
    def cells(self) -> tuple[str, ...]:
        """Its text in the table."""
        rate = "" if self.requests_per_s is None else f"{self.requests_per_s:,.0f}"
        return self.name, self.workload, self.placement, str(self.clients or ""), rate, f"{self.ratio:.2f}"


def timed(work: Callable[[], object]) -> float:
    """Seconds that it takes once, the median over a second."""
    work()
    taken, end = [], time.perf_counter() + MICRO_S
    while time.perf_counter() < end:
        started = time.perf_counter()
        work()
        taken.append(time.perf_counter() - started)
    return statistics.median(taken)


def in_process() -> list[Result]:
    """The levers that need no server; the ratio is of speeds."""
    whole = "JPEGs decoded whole, not scaled"
    ratios = {
        (whole, "embedded"): decoding_ratio("embedded", CIFAR_SIZE),
        (whole, "imagenet"): decoding_ratio("imagenet", IMAGENET_SIZE),
        ("float32 on the edges, not uint8 (serialization alone)", "imagenet"): carrying_ratio(),
        ("FastAPI in the hot path (the request's way to the ingress alone)", "trivial"): asyncio.run(fastapi_ratio()),
    }
    return [Result(name, load, "in process", None, None, ratio) for (name, load), ratio in ratios.items()]


def decoding_ratio(name: str, size: tuple[int, int]) -> float:
    """The speed of decoding a workload's images whole, against decoding JPEGs scaled."""
    images = [path.read_bytes() for path in workload(name, "int8").images]
    headers = [read_header(image, TransformerSettings()) for image in images]

    def decode_all(scaled: bool) -> None:
        for image, header in zip(images, headers, strict=True):
            decode(image, replace(header, is_jpeg=header.is_jpeg and scaled), [Preprocessing(size, 0.875)])

    return timed(lambda: decode_all(True)) / timed(lambda: decode_all(False))


def carrying_ratio() -> float:
    """The speed of serializing a batch as float32, against uint8."""
    pixels = np.zeros((8, *IMAGENET_SIZE, 3), np.uint8)
    floats = pixels.astype(np.float32)

    def carry(array: Any) -> None:
        pickle.loads(pickle.dumps(array, protocol=5))  # noqa: S301

    return timed(lambda: carry(pixels)) / timed(lambda: carry(floats))


async def fastapi_ratio() -> float:
    """Requests/s of a FastAPI route with our parameters, against our dispatch; the ingress answers at once."""
    best = ClassProbability("cat", 3, 0.9)
    versions = {"resnet": 2, "densenet": 2}
    answer = Answer(
        Classification("cat", 3, 0.9, top=(best,), model_versions=versions, trace_id="0" * 32),
        np.zeros(10, np.float32),
    )

    async def graph(batch: Batch[Sequence[bytes]]) -> Batch[Sequence[Answer]]:
        return Batch([answer] * len(batch.items), batch.items)

    ingress = Ingress.of_images(graph, IngressSettings(), 10, Observer(Tracing(None, {})))
    server = HttpServer(Service(ingress, [str(index) for index in range(10)], lambda: True))
    app = FastAPI()

    @app.post("/classify")
    async def classify(
        request: Request,
        top_k: int | None = Query(None, ge=1),
        members: bool = False,
        timeout_ms: int | None = Query(None, ge=1),
    ) -> dict[str, Any]:
        with ingress.observer.call("http", request.headers, {}) as call:
            asked = Options(top_k, members, timeout_ms)
            [outcome] = await ingress.classify([await request.body()], asked, trace=call.trace)
            assert isinstance(outcome, Answer)
            told: dict[str, Any] = msgspec.to_builtins(outcome.classification)
            return told

    body = bytes(15_000)
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "path": "/classify",
        "raw_path": b"/classify",
        "query_string": b"",
        "headers": [(b"host", b"x"), (b"content-type", b"image/jpeg"), (b"content-length", b"15000")],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 8000),
        "scheme": "http",
        "root_path": "",
    }

    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Message) -> None:
        assert message.get("status", 200) == 200

    async def ours() -> None:
        response = await server(Request(dict(scope), receive))
        await response(dict(scope), receive, send)

    async def rate(call: Callable[[], Any]) -> float:
        count, end = 0, time.perf_counter() + MICRO_S
        while time.perf_counter() < end:
            await call()
            count += 1
        return count / MICRO_S

    rates = [(await rate(lambda: app(dict(scope), receive, send)), await rate(ours)) for _ in range(3)]
    return statistics.median(theirs / own for theirs, own in rates)
