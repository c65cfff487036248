"""A replica of the ingress without Serve: every node inline, in this process, and a client of its HTTP."""

import asyncio
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from unittest.mock import patch

import httpx

from deployments.serving import ingress_replica as ingress
from ensemble_features.feedback import feature as feedback
from ensemble_interop.shared_memory import protocol as shared_memory
from graph.app import build

CONTEXT = SimpleNamespace(
    replica_id=SimpleNamespace(deployment_id=SimpleNamespace(app_name="ensemble"), unique_id="here"),
    world_size=1,
    rank=None,
)


class Replica(ingress.IngressReplica):
    """The ingress, whose end is awaited below and not by Serve."""

    def __del__(self):
        pass


@asynccontextmanager
async def served(args):
    """A client of an application's ingress, with the ingress as its attribute `replica`."""
    arguments = build(args)._bound_deployment.init_args
    with TemporaryDirectory() as folder, ExitStack() as stack:
        stack.enter_context(patch("ray.serve.get_replica_context", lambda: CONTEXT))
        stack.enter_context(patch("ray.nodes", list))
        for module in (shared_memory, feedback):
            stack.enter_context(patch.object(module, "sockets", lambda _, name: Path(folder) / name))
        stack.enter_context(patch.object(ingress, "http_host", lambda: "127.0.0.1"))
        replica = Replica(*arguments)
        transport = httpx.ASGITransport(replica._http.asgi)
        try:
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
                client.replica = replica
                yield client
        finally:
            replica._warm_up.cancel()
            await asyncio.gather(replica._warm_up, return_exceptions=True)
            await ingress.IngressReplica.__del__(replica)
