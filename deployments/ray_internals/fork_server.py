"""A process that has imported Ray and what replicas use, and forks a copy of itself for each Python process of Ray's.

Ray starts a Python interpreter for each worker, which imports Ray and the libraries of Serve and of replicas: two
seconds of CPU time and 100 MB each. Forked processes share that memory, and are there within milliseconds.

    python -P -m deployments.ray_internals.fork_server DESCRIPTOR

Nothing of this project is imported before a fork, so that a replica that starts after an upgrade runs the new code.
"""

import gc
import importlib
import os
import runpy
import signal
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy

from deployments.ray_internals.compatibility import FORKS, set_switches

# What a replica, Serve's controller and Ray's agents import, except for OpenVINO: it starts a thread as it is imported,
# which a forked process would lack. Each process imports by itself what this process can't import. Ray imports PyArrow
# in each worker where PyArrow is installed.
PRELOADED = (
    "ray.dashboard.agent",
    "ray.dashboard.modules.reporter.reporter_agent",
    "ray.dashboard.modules.serve.serve_head",
    "ray.serve._private.controller",
    "cv2",
    "fastapi",
    "grpc.aio",
    "grpc_health.v1.health_pb2",
    "grpc_reflection.v1alpha.reflection",
    "httpx",
    "msgspec",
    "numpy.random",
    "opentelemetry.exporter.otlp.proto.http.trace_exporter",
    "PIL.ImageOps",
    "pyarrow.json",
    "pydantic.v1",
    "uvicorn.protocols.http.httptools_impl",
)
# PyArrow's allocator starts no thread as PyArrow is imported.
NO_THREAD = {"JE_ARROW_MALLOC_CONF": "background_thread:false"}
# Ray's library reads these two as it is loaded. A worker ends when the process of that number has ended, Ray's raylet,
# which is not there yet; who starts this server lives longer. Of a job none is known, as for the workers that Ray keeps
# ready for any job.
RAYLET, JOB, NO_JOB = "RAY_RAYLET_PID", "RAY_JOB_ID", "ffffffff"
LENGTH = struct.Struct("!I")
STREAMS = 3
# Seconds in which a client sends its request, which it does at once.
REQUEST_S = 5


def receive_request(connection: socket.socket) -> tuple[bytes, list[int]]:
    """Receive a client's request and its standard streams; raises OSError if the request is not whole."""
    data, streams, _, _ = socket.recv_fds(connection, LENGTH.size, STREAMS)
    if len(data) < LENGTH.size or len(streams) < STREAMS:
        raise OSError("the request is not whole")
    [length] = LENGTH.unpack(data)
    with connection.makefile("rb") as stream:
        body = stream.read(length)
    if len(body) < length:
        raise OSError("the request is not whole")
    return body, streams


def parse_request(body: bytes) -> tuple[bytes, list[bytes], dict[bytes, bytes]]:
    """Parse the folder, the arguments and the environment of a request."""
    folder, count, *rest = body.split(b"\0")
    pairs = (pair.partition(b"=") for pair in rest[int(count) :])
    return folder, rest[: int(count)], {name: value for name, _, value in pairs}


def preload() -> None:
    """Import everything, as in a worker.

    Raises:
        SystemExit: processes of this Ray can't be forked. They are started instead.
    """
    set_switches()
    os.environ.update({RAYLET: str(os.getppid()), JOB: NO_JOB, **NO_THREAD})
    if (problem := FORKS.problem()) is not None:
        sys.exit(f"warning: {problem}")
    with classes_numbered_by_the_system():
        for name in PRELOADED:
            with suppress(ImportError):
                importlib.import_module(name)
    if draw_id() == draw_id():
        sys.exit(f"warning: forked processes would draw the same numbers of Ray's generator: {FORKS.instead}")
    # A replica that starts after an upgrade imports the new code.
    for name in [name for name in sys.modules if name.partition(".")[0] == "deployments"]:
        del sys.modules[name]
    # Kept out of collections, whose marks would copy every page that has an object.
    gc.collect()
    gc.freeze()


@contextmanager
def classes_numbered_by_the_system() -> Iterator[None]:
    """Let the system draw the ids of actor classes that are made meanwhile, and not Ray's generator.

    Every forked process would draw the same numbers of a generator that has been used, and Serve makes such classes as
    it is imported.
    """
    actor: Any = importlib.import_module("ray.actor")
    ids = actor.ActorClassID
    actor.ActorClassID = SimpleNamespace(from_random=lambda: ids(os.urandom(ids.size())))
    try:
        yield
    finally:
        actor.ActorClassID = ids


def draw_id() -> bytes:
    """Return an id that Ray draws in a forked process."""
    from ray import WorkerID

    ours, theirs = os.pipe()
    if (forked := os.fork()) == 0:
        os.write(theirs, WorkerID.from_random().binary())
        os._exit(0)
    os.close(theirs)
    os.waitpid(forked, 0)
    with os.fdopen(ours, "rb") as pipe:
        return pipe.read()


def become(folder: bytes, arguments: list[bytes], environment: dict[bytes, bytes], streams: list[int]) -> None:
    """Run a script as if this interpreter had been started for it."""
    for stream, given in enumerate(streams):
        os.dup2(given, stream)
        os.close(given)
    os.environb.clear()
    os.environb.update(environment)
    os.chdir(folder)
    # The only generator that a fork would leave in the same state everywhere.
    numpy.random.seed()
    first, *rest = sys.argv = [os.fsdecode(each) for each in arguments]
    if first == "-m":
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, str(Path(first).parent))
        runpy.run_path(first, run_name="__main__")


def fork_for(connection: socket.socket) -> tuple[bytes, list[bytes], dict[bytes, bytes], list[int]] | None:
    """Fork for a client; returns its request in the forked process, and None in this one or after a failure."""
    streams: list[int] = []
    connection.settimeout(REQUEST_S)
    with suppress(OSError):
        body, streams = receive_request(connection)
        wanted = parse_request(body)
        if os.fork() == 0:
            return *wanted, streams
    for stream in streams:
        os.close(stream)
    return None


def serve(descriptor: int) -> None:
    """Fork for each client, without end; returns in a forked process, when its script has ended.

    The descriptor is of a Unix socket that listens; who comes too early waits there.
    """
    with socket.socket(fileno=descriptor) as listener:
        os.set_inheritable(descriptor, False)
        preload()
        # Whoever ends is forgotten at once.
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        while True:
            connection, _ = listener.accept()
            if (wanted := fork_for(connection)) is not None:
                break
            connection.close()
    # When a worker ends, Ray kills whatever is in its group.
    os.setpgrp()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    connection.send(b"1")
    become(*wanted)


if __name__ == "__main__":
    serve(int(sys.argv[1]))
