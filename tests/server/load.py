"""Load on a server under test, and the processes of its replicas."""

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import httpx
import psutil

from tests.levels import level
from tests.server.server import eventually, post

CLIENTS = 4


class Load:
    """Clients that ask one picture after the other until the end; what they were answered (None for
    a connection that ended), and who was missing."""

    def __init__(self, server):
        self.statuses, self.missing = Counter(), Counter()
        self._server, self._stop = server, threading.Event()
        self._pool = ThreadPoolExecutor(CLIENTS)

    def _ask(self):
        while not self._stop.is_set():
            try:
                answer = post(self._server, level(10))
            except httpx.TransportError:
                self.statuses[None] += 1
                continue
            self.statuses[answer.status_code] += 1
            for pair in answer.json().get("missing", {}).items():
                self.missing[pair] += 1

    def __enter__(self):
        self._clients = [self._pool.submit(self._ask) for _ in range(CLIENTS)]
        assert eventually(lambda: sum(self.statuses.values()) > CLIENTS)
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._pool.shutdown()
        for client in self._clients:
            client.result()


def replicas(server, deployment):
    """The processes of a deployment's replicas."""
    found = []
    for process in psutil.Process(server.process.pid).children(recursive=True):
        try:
            title = process.cmdline()[:1]
        except psutil.Error:
            continue
        if title and title[0].split(".")[0] == f"ray::ServeReplica:ensemble:{deployment}":
            found.append(process)
    return found
