"""What a web page elsewhere makes a browser send, behind HAProxy."""

import socket

import httpx
import pytest

from tests.levels import level
from tests.server.server import post
from tests.server.shared.servers import only

pytestmark = only(2)
REGION = "/v2/systemsharedmemory/region/browsers"
WRITES = [
    (f"{REGION}/register", {"key": "/es-test-browsers", "offset": 0, "byte_size": 8}),
    ("/v2/systemsharedmemory/unregister", {}),
]


@pytest.mark.parametrize(("path", "body"), WRITES)
@pytest.mark.parametrize("origin", ["https://evil.example", "null"])
def test_a_page_elsewhere_registers_and_unregisters_nothing(server, path, body, origin):
    answer = httpx.post(f"{server.url}{path}", json=body, headers={"Origin": origin, "Content-Type": "text/plain"})
    assert (answer.status_code, answer.json()["error"].partition(":")[0]) == (403, "forbidden")


def test_a_rebound_name_reads_and_asks_nothing(server):
    strange = {"Host": f"evil.example:{server.http_port}"}
    for path in ("/", "/stats", "/v2", "/openapi.json"):
        assert httpx.get(f"{server.url}{path}", headers=strange).status_code == 421, path
    answer = httpx.post(f"{server.url}/classify", content=level(10), headers=strange)
    assert (answer.status_code, answer.json()["error"]["code"]) == (421, "misdirected_request")


def test_the_servers_own_page_and_a_tunnel_to_it_go_on(server):
    own = {"Origin": server.url, "Content-Type": "image/png"}
    assert httpx.post(f"{server.url}/classify", content=level(10), headers=own).status_code == 200
    assert post(server, level(10)).status_code == 200
    # As through `ssh -L 8080:` or `kubectl port-forward`.
    tunnel = {"Host": "localhost:8080", "Origin": "http://localhost:8080"}
    assert httpx.post(f"{server.url}/classify", content=level(10), headers=tunnel).status_code == 200


def test_a_browser_without_tls_can_not_speak_to_grpc(server):
    with socket.create_connection(("127.0.0.1", server.grpc_port), 10) as connection:
        connection.sendall(
            b"POST /inference.GRPCInferenceService/SystemSharedMemoryUnregister HTTP/1.1\r\n"
            b"Host: evil.example\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n\r\n\0\0\0\0\0"
        )
        answer = b""
        while chunk := connection.recv(4096):
            answer += chunk
    assert not answer.startswith(b"HTTP/1")
