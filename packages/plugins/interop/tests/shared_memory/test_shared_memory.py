"""System shared memory, as tritonclient speaks it, and what nobody may do with it."""

import os
from pathlib import Path

import grpc
import httpx
import numpy as np
import pytest

from ensemble_serving.protocol import inference_pb2 as pb
from tests.core.answers.test_http import INFER
from tests.environments import ask, environment
from tests.levels import expected, level
from tests.networks import CLASSES
from tests.server.server import eventually
from tests.server.shared.conftest import HERE
from tests.stub import GRPCInferenceServiceStub

SCRIPT = Path(__file__).parent / "memory_script.py"
PATH = "/v2/systemsharedmemory"


def test_tritonclient_leaves_pictures_and_finds_answers(server, picture):
    python = environment("tritonclient", HERE / "requirements-tritonclient.lock")
    key = f"es-test-{os.getpid()}"
    arguments = (server.url.removeprefix("http://"), server.grpc, picture, key)
    for protocol, answer in ask(python, SCRIPT, *arguments).items():
        np.testing.assert_allclose(answer["written"], [expected(250)], atol=1e-5)
        np.testing.assert_allclose(answer["sent"], [expected(250)], atol=1e-5)
        assert answer["label"] == CLASSES[expected(250).argmax()]
        assert f"/{key}-{protocol}" in str(answer["status"])
        assert "picture" not in str(answer["after"])
        assert "no region" in answer["refused"]


@pytest.fixture
def memory():
    """An object of 4,096 bytes with a picture at its beginning."""
    path = Path(f"/dev/shm/es-test-{os.getpid()}-object")
    element = len(level(9)).to_bytes(4, "little") + level(9)
    path.write_bytes(element.ljust(4096, b"\0"))
    yield path, len(element)
    path.unlink()


def register(server, name, **body):
    return httpx.post(f"{server.url}{PATH}/region/{name}/register", json=body, timeout=30)


def infer(server, **parameters):
    tensor = {"name": "image", "datatype": "BYTES", "shape": [1], "parameters": parameters}
    return httpx.post(server.url + INFER, json={"inputs": [tensor]}, timeout=60)


def test_what_a_region_may_be(server, memory):
    path, size = memory
    assert register(server, "one", key=path.name, byte_size=4096).status_code == 200
    for name, body in (
        ("one", {"key": path.name, "byte_size": 4096}),
        ("two", {"key": path.name, "byte_size": 4097}),
        ("two", {"key": path.name, "byte_size": 1, "offset": 4096}),
        ("two", {"key": path.name, "byte_size": 1, "offset": 2**62}),
        ("two", {"key": path.name, "byte_size": 2**63, "offset": 2**63}),
        ("two", {"key": path.name, "byte_size": 0}),
        ("two", {"key": path.name, "byte_size": -1}),
        ("two", {"key": path.name, "byte_size": "1"}),
        ("two", {"key": "/etc/passwd", "byte_size": 1}),
        ("two", {"key": "../../etc/passwd", "byte_size": 1}),
        ("two", {"key": f"es-test/../{path.name}", "byte_size": 1}),
        ("two", {"key": "other", "byte_size": 1}),
        ("two", {"key": "es-test\0", "byte_size": 1}),
        ("two", {"byte_size": 1}),
        ("x" * 201, {"key": path.name, "byte_size": 1}),
    ):
        answer = register(server, name, **body)
        assert (answer.status_code, answer.json()["error"].partition(":")[0]) == (422, "invalid_parameter"), body
    assert register(server, "two", key="es-test-nothing", byte_size=1).status_code == 404
    link = path.with_name(f"{path.name}-link")
    link.symlink_to("/etc/passwd")
    try:
        assert register(server, "two", key=link.name, byte_size=1).status_code == 404
    finally:
        link.unlink()
    [region] = httpx.get(f"{server.url}{PATH}/status").json()
    assert region == {"name": "one", "key": path.name, "offset": 0, "byte_size": 4096}
    assert httpx.get(f"{server.url}{PATH}/region/one/status").json() == [region]
    assert httpx.get(f"{server.url}{PATH}/region/two/status").status_code == 404
    answer = infer(server, shared_memory_region="one", shared_memory_byte_size=size)
    np.testing.assert_allclose(answer.json()["outputs"][2]["data"], expected(9), atol=1e-5)
    for parameters, status in (
        ({"shared_memory_region": "two", "shared_memory_byte_size": size}, 404),
        ({"shared_memory_region": "one"}, 422),
        ({"shared_memory_region": "one", "shared_memory_byte_size": 4097}, 422),
        ({"shared_memory_region": "one", "shared_memory_byte_size": 2**62}, 413),
        ({"shared_memory_region": "one", "shared_memory_byte_size": -1}, 422),
        ({"shared_memory_region": "one", "shared_memory_byte_size": size, "shared_memory_offset": -1}, 422),
        ({"shared_memory_region": "one", "shared_memory_byte_size": size, "shared_memory_offset": 4000}, 422),
        ({"shared_memory_region": "one", "shared_memory_byte_size": size + 1}, 422),
        ({"shared_memory_region": "one", "shared_memory_byte_size": "x"}, 422),
        ({"shared_memory_region": 1, "shared_memory_byte_size": size}, 422),
    ):
        assert infer(server, **parameters).status_code == status, parameters
    # A client that makes its memory shorter harms nobody but itself.
    os.truncate(path, 10)
    assert infer(server, shared_memory_region="one", shared_memory_byte_size=size).status_code == 422
    with grpc.insecure_channel(server.grpc) as channel:
        stub = GRPCInferenceServiceStub(channel)
        stub.SystemSharedMemoryUnregister(pb.SystemSharedMemoryUnregisterRequest(name="one"))
        assert not stub.SystemSharedMemoryStatus(pb.SystemSharedMemoryStatusRequest()).regions
    assert httpx.get(f"{server.url}{PATH}/status").json() == []


def test_it_can_be_off(server, memory):
    path, size = memory
    assert "system_shared_memory" in httpx.get(f"{server.url}/v2").json()["extensions"]
    assert register(server, "kept", key=path.name, byte_size=4096).status_code == 200
    server.reconfigure({"shared_memory_prefix": None})
    try:
        assert eventually(lambda: httpx.get(f"{server.url}{PATH}/status").status_code == 404)
        assert "system_shared_memory" not in httpx.get(f"{server.url}/v2").json()["extensions"]
        assert infer(server, shared_memory_region="kept", shared_memory_byte_size=size).status_code == 404
        assert register(server, "new", key=path.name, byte_size=1).status_code == 404
    finally:
        server.reconfigure({})
    assert eventually(lambda: httpx.get(f"{server.url}{PATH}/status").status_code == 200)
    assert httpx.post(f"{server.url}{PATH}/unregister").status_code == 200
    assert httpx.get(f"{server.url}{PATH}/status").json() == []
