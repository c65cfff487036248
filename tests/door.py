"""The door over HTTP without a server: what it answers to a request, and the images that reached the graph."""

import asyncio
import json
import sys
from functools import partial
from types import SimpleNamespace

import numpy as np
from starlette.requests import Request

from deployments.contract.answer import Answer, Classification, ClassProbability
from deployments.contract.batch import Batch
from deployments.ingress.http.server import HttpServer
from deployments.ingress.ingress import Ingress
from deployments.ingress.protocol import Service
from deployments.ingress.settings import IngressSettings
from deployments.observe.observer import Observer
from ensemble_features.feedback.feature import Feedback
from ensemble_features.loading.feature import Loading
from graph.config import parse
from graph.feature import Site
from graph.signature import EnsembleSignature

# As they are in an application whose configuration names no operators and has no feedback.
WITHOUT = parse({"members": [{"name": "one"}]}), EnsembleSignature((), {}, {}, (), {}), Site()
NO_LOADING, NO_FEEDBACK = Loading(*WITHOUT), Feedback(*WITHOUT)
OBSERVER = Observer()
LABELS = ("bird", "cat", "deer", "dog", "frog")
CLASSES = len(LABELS)


async def _append(sent, message):
    sent.append(message)


class Door:
    """Answers requests from a graph that answers every image alike, and keeps them in `images`."""

    def __init__(self, max_image_bytes=sys.maxsize, **settings):
        self.images = []
        self.service = Service(
            Ingress.of_images(self._graph, IngressSettings(**settings), CLASSES, OBSERVER),
            LABELS,
            lambda: True,
            features=[NO_LOADING, NO_FEEDBACK],
            max_image_bytes=max_image_bytes,
        )
        self._http = HttpServer(self.service)

    async def _graph(self, batch):
        self.images += batch.payload
        best = ClassProbability("cat", 1, 0.5)
        answers = [
            Answer(
                Classification("cat", 1, 0.5, top=(best,), model_versions={}, trace_id="0" * 32),
                np.full(CLASSES, 0.2, np.float32),
            )
            for _ in batch.payload
        ]
        return Batch(answers, batch.items)

    def ask(self, path, body=b"", headers=(), query=b"", chunk=1000, method="POST"):
        """The status and the JSON of an answer; the body comes in chunks."""
        response = self.answer(path, body, headers, query, chunk, method=method)
        # Tensors may follow the JSON.
        length = int(response.headers.get("Inference-Header-Content-Length", len(response.body)))
        return response.status_code, json.loads(response.body[:length])

    def answer(self, path, body=b"", headers=(), query=b"", chunk=1000, leaves=False, method="POST", alone=False):
        """The whole answer; who `leaves` is gone when the body has come, and before it is whole.

        `alone`: as behind HAProxy, where Serve looks after nobody.
        """
        chunks = [body[i : i + chunk] for i in range(0, len(body), chunk)] or [b""]
        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": query,
            "headers": [(name.lower().encode(), value) for name, value in headers],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 8000),
            "scheme": "http",
            "root_path": "",
        }

        async def receive():
            if not chunks:
                return {"type": "http.disconnect"}
            return {"type": "http.request", "body": chunks.pop(0), "more_body": leaves or bool(chunks)}

        async def answered():
            if not alone:
                return await self._http(Request(scope, receive))
            sent = []
            await self._http.asgi(scope, receive, partial(_append, sent))
            return SimpleNamespace(status_code=sent[0]["status"])

        return asyncio.run(answered())
