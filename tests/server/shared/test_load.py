"""`ensemble load` and the importable client, with a real server."""

import json
import subprocess
import sys

import pytest

from ensemble_serving import Client
from graph.errors import InvalidImage
from tests.conftest import ROOT
from tests.levels import level
from tests.server.shared.servers import only

pytestmark = only(1)
MEMBER = ("--model", "brightness", "--batch", "4")


def load(tmp_path, *arguments):
    """What the command writes as JSON."""
    (tmp_path / "image.png").write_bytes(level(10))
    command = [sys.executable, "-m", "ensemble_capacity.load", *arguments, "--seconds", "1.5", "--warm-up", "0.2"]
    command += ["--images", tmp_path / "image.png", "--json", tmp_path / "load.json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads((tmp_path / "load.json").read_text())


@pytest.mark.parametrize(
    "arguments",
    [
        ("http", "", "--concurrency", "4"),
        ("http", "", "--rate", "40", "--batch", "3"),
        ("http", "/v2", "--concurrency", "2", *MEMBER),
        ("http", "/v1/models/ensemble", "--concurrency", "4"),
        ("grpc", "", "--rate", "40"),
        ("grpc", "", "--concurrency", "4", "--protocol", "tensorflow-serving"),
    ],
    ids=" ".join,
)
def test_every_protocol_is_loaded_and_the_servers_processes_are_watched(server, tmp_path, arguments):
    scheme, path, *flags = arguments
    url = server.url if scheme == "http" else f"grpc://{server.grpc}"
    [row] = load(tmp_path, url + path, *flags)["rows"]
    assert row["failed"] == 0
    assert row["requests"] > 5
    # Every process of the server is seen, from the one that listens on.
    assert {"haproxy", "gcs_server"} <= set(row["server"]["cpu_s"])
    assert any(name.startswith("ray::ServeReplica") for name in row["server"]["memory_mb"])


@pytest.mark.parametrize("scheme", ["http", "grpc"])
async def test_the_client_classifies_many_at_a_time(server, scheme):
    url = server.url if scheme == "http" else f"grpc://{server.grpc}"
    images = [level(10), b"no image", *[level(10)] * 60]
    labels = {}
    async with Client(url, concurrency=20) as client:
        async for position, future in client.as_completed(images, members=True):
            labels[position] = future.exception() or (future.result().label, set(future.result().members))
        answer = await client.submit(level(10), top_k=2)
    assert len(answer.top) == 2
    assert isinstance(labels.pop(1), InvalidImage)
    assert set(labels) == {0, *range(2, 62)}
    assert all(label == (answer.label, {"one", "six", "brightness"}) for label in labels.values())
