"""The way of one JPEG through the server's code, counted: `python -m tests.way` prints it.

The server's own objects stand in one process, with every node inline and no feature configured; a request comes to the
HTTP server as uvicorn would pass it. Each function of this project that begins to run from then until the answer is
counted once, in the event loop and in every other thread. Comprehensions are parts of their functions.
"""

import asyncio
import dis
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

from starlette.requests import Request

from deployments.ingress.http.server import HttpServer
from deployments.ingress.ingress import Ingress
from deployments.ingress.protocol import Service
from deployments.observe.observer import Observer
from graph.composition import build_graph, ensemble
from graph.config import EnsembleConfig, parse
from graph.feature import wanted
from graph.placement import node_specs
from graph.signature import resolve_signatures

ROOT = Path(__file__).parents[1]
COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")
RESUME, START = dis.opmap["RESUME"], 0
MODELS = ("resnet", "densenet")


class Way(NamedTuple):
    """The functions that began to run, in order, as (file, qualified name)."""

    calls: list[tuple[str, str]]

    @property
    def functions(self) -> int:
        return len(set(self.calls))

    @property
    def files(self) -> int:
        return len({file for file, _ in self.calls})

    @property
    def changes(self) -> int:
        """How often the next function is in another file."""
        return sum(one != other for (one, _), (other, _) in pairwise(self.calls))

    @property
    def crossings(self) -> int:
        """How often the next function of `graph` or `deployments` is in the other package."""
        rooms = [room for file, _ in self.calls if (room := file.partition("/")[0]) in {"graph", "deployments"}]
        return sum(one != other for one, other in pairwise(rooms))


@contextmanager
def recorded(calls: list[tuple[str, str]]) -> Iterator[None]:
    """Append each function of this project that begins to run in the block, in threads that are made in it, too."""
    known: dict[CodeType, tuple[str, str] | None] = {}

    def note(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event != "call":
            return
        # A coroutine that goes on after it has waited does not begin again.
        if code.co_code[frame.f_lasti] == RESUME and code.co_code[frame.f_lasti + 1] != START:
            return
        if code not in known:
            file = Path(code.co_filename)
            inside = file.is_relative_to(ROOT) and not file.is_relative_to(ROOT / ".venv") and file != Path(__file__)
            inside = inside and not code.co_name.endswith(COMPREHENSIONS)
            known[code] = (str(file.relative_to(ROOT)), code.co_qualname) if inside else None
        if (call := known[code]) is not None:
            calls.append(call)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def service(config: EnsembleConfig) -> Service:
    """Make what the protocols share, of an application whose nodes are all inline."""
    agreed = resolve_signatures(config)
    placed = {name: each.make() for name, each in node_specs(config, agreed).items()}
    compose = partial(ensemble, agreed.pixels, config.ensemble)
    built = build_graph(config, agreed, wanted(config), compose, {}, placed, "application", "replica", {})
    observer = Observer()
    ingress = Ingress.of_images(built.graph, config.ingress, len(agreed.labels), observer, built.knows)
    most = config.transformer.max_image_bytes
    return Service(ingress, agreed.labels, lambda: True, extensions=built.features, max_image_bytes=most)


def inline(*models: str) -> EnsembleConfig:
    """A configuration of models with every node inline."""
    members = [{"name": model, "model": model, "placement": "inline", "threads": 1} for model in models]
    nodes = {name: {"placement": "inline"} for name in ("transformer", "combiner", "labeler")}
    return parse({"members": members, **nodes})


def request(image: bytes) -> Request:
    """A request for the class of an image, as uvicorn passes it."""
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "path": "/classify",
        "raw_path": b"/classify",
        "query_string": b"",
        "headers": [(b"host", b"localhost"), (b"content-type", b"image/jpeg"), (b"content-length", b"%d" % len(image))],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 8000),
        "scheme": "http",
    }
    messages = iter([{"type": "http.request", "body": image, "more_body": False}])

    async def receive() -> Any:
        return next(messages)

    return Request(scope, receive)


async def way(image: bytes) -> Way:
    """Send a JPEG through the server, once to warm up and once more, counted."""
    server = HttpServer(service(inline(*MODELS)))
    calls: list[tuple[str, str]] = []
    with recorded(calls):
        for _ in range(2):
            # The nodes' threads begin with the first.
            calls.clear()
            response = await server.alone(request(image))
            assert response.status_code == 200, response.body
            found = Way(list(calls))
            # The batch is observed once its answers are out.
            await asyncio.sleep(0.05)
    return found


def main() -> None:
    found = asyncio.run(way((ROOT / "tests" / "cat.jpg").read_bytes()))
    before = ""
    for number, (file, name) in enumerate(found.calls, 1):
        print(f"{number:4} {file if file != before else '':50} {name}")
        before = file
    print(f"{found.functions} functions, {found.files} files, {found.changes} changes, {found.crossings} crossings")


if __name__ == "__main__":
    main()
