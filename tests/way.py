"""The way of one JPEG through the server's code, counted: `python -m tests.way` prints it.

The server's own objects stand in one process, with no feature configured; a request comes as uvicorn passes it. Every
node is inline, or, by `--separate`, behind a socket as a replica on the same machine is; both ends of the socket count.
Each function of this project that begins to run from the request until the answer is counted once, in the event loop
and in every other thread. Comprehensions are parts of their functions.
"""

import argparse
import asyncio
import dis
import sys
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from types import CodeType, FrameType, SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

from deployments.contract.nodes import Node
from deployments.ingress.http.server import HttpServer
from deployments.ingress.ingress import Ingress
from deployments.ingress.protocol import Service
from deployments.observe.observer import Observer
from deployments.rpc.cluster import ClusterSize
from deployments.rpc.direct import DirectEdge
from deployments.serving import node_replica
from deployments.serving.node_replica import NodeDeployment
from graph.composition import build_graph, ensemble
from graph.config import EnsembleConfig, parse
from graph.feature import wanted
from graph.placement import NodeSpec, node_specs
from graph.signature import resolve_signatures

ROOT = Path(__file__).parents[1]
COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")
RESUME, START = dis.opmap["RESUME"], 0
MODELS = ("resnet", "densenet")
TRIES = 6


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
        """How often the next function is in another top package."""
        return sum(one != other for one, other in pairwise(file.partition("/")[0] for file, _ in self.calls))


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
            inside = (
                file.is_relative_to(ROOT)
                and not file.is_relative_to(ROOT / ".venv")
                and not file.is_relative_to(ROOT / "tests")
            )
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


class NodeReplica(NodeDeployment):
    """A replica of a node, whose socket is closed below and not by Serve."""

    def __del__(self) -> None:  # type: ignore[override]
        pass


async def by_handle(batch: Any) -> Any:
    """Fail: every batch goes by a socket."""
    raise AssertionError("no replica was found")


@asynccontextmanager
async def placed(specs: Mapping[str, NodeSpec]) -> AsyncIterator[dict[str, Node[Any, Any]]]:
    """Make each node here: an inline one, or a separate one behind its socket."""
    unused, cluster = SimpleNamespace(world_size=1, rank=None), ClusterSize()
    nodes: dict[str, Node[Any, Any]] = {}
    listeners = []
    with (
        TemporaryDirectory() as folder,
        patch("ray.nodes", lambda: [{"Alive": True}]),
        patch.object(node_replica, "sockets", lambda _, name: Path(folder) / name),
        patch("ray.serve.get_replica_context", lambda: unused),
    ):
        for name, spec in specs.items():
            if spec.placement == "inline":
                nodes[name] = spec.make()
                continue
            vars(unused).update(app_name="way", deployment=name, replica_id=SimpleNamespace(unique_id="one"))
            replica = NodeReplica(name, spec.make, listens=True)
            await replica.check_health()
            listeners.append(replica._listener)
            nodes[name] = DirectEdge(Path(folder) / name, by_handle, lambda _: None, cluster)
        try:
            yield nodes
        finally:
            for node in nodes.values():
                if isinstance(node, DirectEdge):
                    for replica_name in list(node._replicas.look()):
                        node._replicas.forget(replica_name)
            await asyncio.gather(*(each.close() for each in listeners if each is not None))


@asynccontextmanager
async def server(config: EnsembleConfig) -> AsyncIterator[HttpServer]:
    """Make what HAProxy calls, and everything behind it."""
    agreed = resolve_signatures(config)
    async with placed(node_specs(config, agreed)) as nodes:
        compose = partial(ensemble, agreed.pixels, config.ensemble)
        built = build_graph(config, agreed, wanted(config), compose, {}, nodes, "application", "replica", {})
        ingress = Ingress.of_images(built.graph, config.ingress, len(agreed.labels), Observer())
        most = config.transformer.max_image_bytes
        service = Service(ingress, agreed.labels, lambda: True, features=built.features, max_image_bytes=most)
        yield HttpServer(service)


def configured(placement: str) -> EnsembleConfig:
    """A configuration of models with every node placed alike."""
    members = [{"name": model, "model": model, "placement": placement, "threads": 1} for model in MODELS]
    nodes = {name: {"placement": placement} for name in ("transformer", "combiner", "labeler")}
    return parse({"members": members, **nodes})


async def answer(http: HttpServer, image: bytes) -> int:
    """Send a request for the class of an image, as uvicorn passes it; returns the status."""
    headers = {"host": "localhost", "content-type": "image/jpeg", "content-length": str(len(image))}
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "path": "/classify",
        "raw_path": b"/classify",
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 8000),
        "scheme": "http",
    }
    messages = iter([{"type": "http.request", "body": image, "more_body": False}])
    sent: list[Any] = []

    async def receive() -> Any:
        return next(messages)

    async def send(message: Any) -> None:
        sent.append(message)

    await http.asgi(scope, receive, send)
    return int(sent[0]["status"])


async def way(image: bytes, placement: str = "inline") -> Way:
    """Send a JPEG through the server, to warm it up and then counted: the shortest of several ways.

    A busy machine makes a way longer, because what is due from time to time is due in it.
    """
    calls: list[tuple[str, str]] = []
    found: list[Way] = []
    async with server(configured(placement)) as http:
        with recorded(calls):
            for _ in range(TRIES):
                # The nodes' threads begin with the first.
                calls.clear()
                assert await answer(http, image) == 200
                found.append(Way(list(calls)))
                # The batch is observed once its answers are out.
                await asyncio.sleep(0.2)
    return min(found[1:], key=lambda each: each.functions)


def main() -> None:
    parser = argparse.ArgumentParser(description="Print the way of a JPEG through the server's code.")
    parser.add_argument("--separate", action="store_true", help="with every node behind a socket")
    placement = "separate" if parser.parse_args().separate else "inline"
    found = asyncio.run(way((ROOT / "tests" / "cat.jpg").read_bytes(), placement))
    before = ""
    for number, (file, name) in enumerate(found.calls, 1):
        print(f"{number:4} {file if file != before else '':50} {name}")
        before = file
    print(
        f"{found.functions} functions, {found.files} files, {len(found.calls)} calls, {found.changes} changes of file, "
        f"{found.crossings} of top package"
    )


if __name__ == "__main__":
    main()
