"""The launcher's changes to what Serve's own template writes, seen at a running HAProxy."""

import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import grpc
import httpx
import psutil
import pytest
from ray.serve._private import haproxy as serve
from ray.serve.config import HTTPOptions, gRPCOptions

from deployments.protocol import inference_pb2 as pb
from deployments.protocol import inference_pb2_grpc
from scripts.serve import front, launcher
from tests.certificates import self_signed
from tests.server.server import eventually, free_ports

pytestmark = pytest.mark.slow
SERVICER = "deployments.protocol.inference_pb2_grpc.add_GRPCInferenceServiceServicer_to_server"


class Front:
    """What Serve would have HAProxy do: its ports, and the file with its configuration."""

    def __init__(self, folder, host="127.0.0.1", grpc=True):
        self.http, self.grpc, self.stats, self.metrics, self.replica, self.fallback = free_ports(6)
        config = serve.HAProxyConfig(
            socket_path=str(folder / "admin.sock"),
            server_state_base=str(folder),
            server_state_file=str(folder / "server-state"),
            metrics_socket_path=str(folder / "metrics.sock"),
            # As configs/serve.env has it.
            retry_on="conn-failure empty-response",
            retries=3,
            stats_port=self.stats,
            metrics_port=self.metrics,
            http_options=HTTPOptions(host=host, port=self.http),
            grpc_options=gRPCOptions(port=self.grpc, grpc_servicer_functions=[SERVICER] if grpc else []),
            is_head=True,
            has_received_routes=True,
        )
        self.folder, self.file = folder, folder / "haproxy.cfg"
        self._api = serve.HAProxyApi(cfg=config, config_file_path=str(self.file))
        self._api._generate_config_file_internal()

    def deploy(self, name="ensemble"):
        """As once an application is there: a replica, and behind it Serve's own proxy."""
        fallback = serve.ServerConfig("SERVE_PROXY_ACTOR-1", "127.0.0.1", self.fallback)
        replica = serve.ServerConfig("SERVE_REPLICA-1", "127.0.0.1", self.replica)
        backends = [
            serve.BackendConfig(
                name=f"{protocol.value.lower()}-{name}",
                path_prefix="/",
                app_name=name,
                servers=[replica],
                fallback_server=fallback,
                protocol=protocol,
            )
            for protocol in (serve.RequestProtocol.HTTP, serve.RequestProtocol.GRPC)
        ]
        self._api.set_backend_configs({backend.name: backend for backend in backends})
        self._api.set_grpc_fallback_server(fallback)
        self._api._generate_config_file_internal()

    @contextmanager
    def running(self, *arguments, **environment):
        """HAProxy by the launcher, started as Serve does."""
        log = self.folder / f"log{len(arguments)}"
        command = [sys.executable, "-m", "scripts.serve.launcher", "-db", "-f", str(self.file), "-dR", *arguments]
        with log.open("w") as stream:
            process = subprocess.Popen(command, stderr=stream, env={**os.environ, **environment})
        try:
            yield process
        finally:
            process.kill()
            process.wait()
            sys.stderr.write(log.read_text())

    def told(self):
        """The number of the process that answers HAProxy's commands; none while none does."""
        try:
            with socket.socket(socket.AF_UNIX) as commands:
                commands.connect(str(self.folder / "admin.sock"))
                commands.sendall(b"show info\n")
                answer = b"".join(iter(lambda: commands.recv(65536), b"")).decode()
        except OSError:
            return None
        return int(answer.partition("\nPid: ")[2].split()[0])


@pytest.fixture
def folder(tmp_path_factory):
    """Short, because the paths of sockets below it are."""
    folder = tmp_path_factory.mktemp("f")
    yield folder
    shutil.rmtree(folder)


class Replica(BaseHTTPRequestHandler):
    """Answers by its path: a status, in plain text; or what it was sent; or nothing."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        name = self.path.rpartition("/")[2]
        if name == "nothing":
            self.close_connection = True
            return
        body = json.dumps(dict(self.headers)) if name == "echo" else "Serve's words"
        status = int(name) if name.isdigit() else 200
        self.send_response(status)
        self.send_header("Content-Type", "application/json" if name == "echo" else "text/plain")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.do_GET()

    def log_message(self, *_):
        pass


class Quiet(ThreadingHTTPServer):
    def handle_error(self, *_):
        """HAProxy's health checks close early."""


@contextmanager
def answering(port):
    with Quiet(("127.0.0.1", port), Replica) as server, ThreadPoolExecutor() as pool:
        pool.submit(server.serve_forever)
        try:
            yield
        finally:
            server.shutdown()


def get(front_, path, **headers):
    return httpx.get(f"http://127.0.0.1:{front_.http}{path}", headers=headers)


def is_refusal_to_come_again(answer, path="/"):
    error = answer.json()["error"]
    code = error.partition(":")[0] if path.startswith("/v2") else error["code"]
    return (answer.status_code, answer.headers["retry-after"], code) == (503, "1", "not_ready")


def refused(stub):
    """The status that a call is refused with."""
    with pytest.raises(grpc.RpcError) as caught:
        stub.ServerMetadata(pb.ServerMetadataRequest(), timeout=30)
    return caught.value.code()


def test_before_the_application_is_there_clients_are_asked_to_come_again(folder):
    serving = Front(folder)
    with serving.running() as process:
        assert eventually(lambda: serving.told() == process.pid)
        for path in ("/classify", "/v2/models/ensemble/infer"):
            assert is_refusal_to_come_again(get(serving, path), path)
        with grpc.insecure_channel(f"127.0.0.1:{serving.grpc}") as channel:
            assert refused(inference_pb2_grpc.GRPCInferenceServiceStub(channel)) == grpc.StatusCode.UNAVAILABLE
        # Serve's own paths stay.
        assert get(serving, "/-/routes").json() == {}


def test_what_fails_behind_haproxy_is_a_503(folder):
    serving = Front(folder)
    serving.deploy()
    with serving.running() as process:
        assert eventually(lambda: serving.told() == process.pid)
        for path in ("/classify", "/v2"):
            assert is_refusal_to_come_again(get(serving, path), path)
        with grpc.insecure_channel(f"127.0.0.1:{serving.grpc}") as channel:
            assert refused(inference_pb2_grpc.GRPCInferenceServiceStub(channel)) == grpc.StatusCode.UNAVAILABLE
        with answering(serving.fallback):
            # Once HAProxy has seen that it is there.
            assert eventually(lambda: get(serving, "/echo").status_code == 200)
            for status in (404, 500, 503):
                assert is_refusal_to_come_again(get(serving, f"/{status}"))
            assert get(serving, "/v2/400").text == "Serve's words"
            with answering(serving.replica):
                eventually(lambda: get(serving, "/404").status_code == 404)
                # What a replica says of itself is its own.
                for status in (404, 500, 503, 504):
                    assert (answer := get(serving, f"/{status}")).status_code == status
                    assert answer.text == "Serve's words"
                assert is_refusal_to_come_again(get(serving, "/nothing"))


def test_headers_must_come_soon_and_a_body_may_take_longer(folder):
    serving = Front(folder)
    serving.deploy()
    with answering(serving.replica), serving.running() as process:
        assert eventually(lambda: serving.told() == process.pid)
        assert eventually(lambda: get(serving, "/echo").status_code == 200)
        with (
            socket.create_connection(("127.0.0.1", serving.http)) as slow,
            socket.create_connection(("127.0.0.1", serving.http)) as slower,
        ):
            slow.sendall(b"POST /200 HTTP/1.1\r\nHost: x\r\nContent-Length: 10000\r\n\r\n" + bytes(9000))
            slower.sendall(b"POST /200 HTTP/1.1\r\nHost:")
            # Ends when HAProxy has waited long enough for the rest of the headers.
            assert slower.recv(4096).startswith(b"HTTP/1.1 408")
            slow.sendall(bytes(1000))
            assert slow.recv(4096).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("path", ["/classify", "/v2/models/ensemble/infer"])
def test_a_body_that_hardly_begins_does_not_reach_the_application(folder, path):
    serving = Front(folder)
    serving.deploy()
    # Nobody is there: what HAProxy hands on is refused by 503.
    with serving.running() as process:
        assert eventually(lambda: serving.told() == process.pid)
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n".encode()
        with socket.create_connection(("127.0.0.1", serving.http)) as slow:
            slow.sendall(head + b"0123456789")
            answer = b"".join(iter(lambda: slow.recv(4096), b""))
        assert answer.startswith(b"HTTP/1.1 408")
        error = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
        assert (error if path.startswith("/v2") else error["code"]).startswith("slow_body")
        with socket.create_connection(("127.0.0.1", serving.http)) as fast:
            fast.sendall(head + bytes(9000))
            assert fast.recv(4096).startswith(b"HTTP/1.1 503")


def test_what_a_client_says_of_its_address_is_replaced_and_an_upgrade_left_alone(folder):
    serving = Front(folder)
    serving.deploy()
    with answering(serving.replica), serving.running() as process:
        assert eventually(lambda: serving.told() == process.pid)
        assert eventually(lambda: get(serving, "/echo").status_code == 200)
        upgrade = {
            "Connection": "Upgrade",
            "Upgrade": "websocket",
            "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
        }
        answer = get(serving, "/echo", **upgrade, **{"X-Forwarded-For": "10.0.0.1"})
        assert answer.status_code == 200
        seen = {name.lower(): value for name, value in answer.json().items()}
        assert seen["x-forwarded-for"] == "127.0.0.1"
        assert not {"upgrade"} & set(seen)


@pytest.mark.parametrize(
    ("name", "own_loop", "told"), [("ensemble", False, "?1"), ("ensemble", True, None), ("another", False, "?0")]
)
@pytest.mark.parametrize(
    "length", ["Content-Length: 10000", "Content-Length: 1099511627776", "Transfer-Encoding: chunked"]
)
def test_serve_is_told_not_to_look_whether_a_client_leaves(folder, length, name, own_loop, told):
    serving = Front(folder)
    serving.deploy(name)
    mode = {"RAY_SERVE_THROUGHPUT_OPTIMIZED": "1", "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": str(int(own_loop))}
    with answering(serving.replica), serving.running(**mode) as process:
        assert eventually(lambda: serving.told() == process.pid)
        assert eventually(lambda: get(serving, "/echo").status_code == 200)
        with socket.create_connection(("127.0.0.1", serving.http), timeout=10) as client:
            # What a client says of it counts for nothing, but where the application is not ours.
            said = "X-Request-Disconnect-Disabled: ?0\r\nX-Request-Timeout-Seconds: 0.1\r\n"
            head = f"GET /echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{said}{length}\r\n\r\n"
            client.sendall(head.encode() + b"2328\r\n" + bytes(9000) + b"\r\n")
            answer = b""
            while b"}" not in answer:
                answer += client.recv(4096)
        seen = {name.lower(): value for name, value in json.loads(answer.partition(b"\r\n\r\n")[2]).items()}
        assert seen.get("x-request-disconnect-disabled") == told
        assert ("x-request-timeout-seconds" in seen) == (name != "ensemble")


def test_while_no_replica_is_there_serve_looks_as_its_proxy_keeps_the_requests(folder):
    serving = Front(folder)
    serving.deploy()
    with answering(serving.fallback), serving.running(RAY_SERVE_THROUGHPUT_OPTIMIZED="1") as process:
        assert eventually(lambda: serving.told() == process.pid)
        told = {"x-request-disconnect-disabled": "?1"}
        assert eventually(lambda: get(serving, "/echo", **told).status_code == 200)
        assert not set(told) & {name.lower() for name in get(serving, "/echo", **told).json()}


def test_http_is_http_1_so_that_no_refusal_is_lost(folder):
    serving = Front(folder)
    with serving.running() as process:
        assert eventually(lambda: serving.told() == process.pid)
        with socket.create_connection(("127.0.0.1", serving.http)) as client:
            client.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9))
            assert client.recv(4096).startswith(b"HTTP/1.1 400")


def test_a_client_that_speaks_http_2_too_is_told_to_speak_http_1(folder, tmp_path):
    certificate, key = self_signed(tmp_path)
    serving = Front(folder)
    with serving.running(**{launcher.CERTIFICATE: str(certificate), launcher.KEY: str(key)}) as process:
        assert eventually(lambda: serving.told() == process.pid)
        context = ssl.create_default_context(cafile=certificate)
        context.set_alpn_protocols(["h2", "http/1.1"])
        with (
            socket.create_connection(("127.0.0.1", serving.http)) as client,
            context.wrap_socket(client, server_hostname="127.0.0.1") as secured,
        ):
            assert secured.selected_alpn_protocol() == "http/1.1"


def test_everything_but_the_service_is_on_loopback_and_commands_are_this_users(folder):
    serving = Front(folder, host="0.0.0.0")
    with serving.running() as process:
        assert eventually(lambda: serving.told() == process.pid)
        listening = {
            (connection.laddr.ip, connection.laddr.port)
            for connection in psutil.Process(process.pid).net_connections()
            if connection.status == psutil.CONN_LISTEN
        }
        assert listening == {
            ("0.0.0.0", serving.http),
            ("0.0.0.0", serving.grpc),
            ("127.0.0.1", serving.stats),
            ("127.0.0.1", serving.metrics),
        }
        assert (folder / "admin.sock").stat().st_mode & 0o777 == 0o600


def test_a_reload_takes_over(folder):
    serving = Front(folder)
    with serving.running() as first:
        assert eventually(lambda: serving.told() == first.pid)
        serving.deploy()
        assert not serving.file.read_text().startswith(front.MARK)
        with serving.running("-sf", str(first.pid), "-x", str(folder / "admin.sock")) as second:
            assert eventually(lambda: serving.told() == second.pid)
            # Serve finds its processes by their command line.
            assert str(serving.file) in psutil.Process(second.pid).cmdline()
            assert first.wait(30) == 0
            with answering(serving.replica):
                assert eventually(lambda: get(serving, "/echo").status_code == 200)


@pytest.mark.parametrize("is_deployed", [False, True])
@pytest.mark.parametrize("has_grpc", [False, True])
def test_every_form_of_the_template_is_recognised(folder, is_deployed, has_grpc):
    serving = Front(folder, grpc=has_grpc)
    if is_deployed:
        serving.deploy()
    text = front.edited(serving.file.read_text())
    assert text.count("http-request set-header x-forwarded-for") == 1 + has_grpc
    with pytest.raises(front.Unrecognized, match="mode 666"):
        front.edited(text)


def test_what_is_not_recognised_runs_as_it_is_with_a_warning(folder, capfd):
    serving = Front(folder)
    strange = (
        serving.file.read_text()
        .replace("backend default_backend", "backend another")
        .replace("default_backend default_backend", "default_backend another")
    )
    serving.file.write_text(strange)
    with serving.running() as process:
        assert eventually(lambda: serving.told() == process.pid)
        assert serving.file.read_text() == strange
        assert get(serving, "/classify").status_code == 404
    assert "warning: HAProxy runs with the configuration as Serve wrote it" in capfd.readouterr().err


def test_what_haproxy_would_refuse_is_not_written(folder, monkeypatch):
    serving = Front(folder)
    before = serving.file.read_text()
    monkeypatch.setattr(front, "FORWARDED", "http-request no-such-thing")
    with pytest.raises(front.Unrecognized, match="no-such-thing"):
        launcher.edit(serving.file, launcher.bundled())
    assert serving.file.read_text() == before


@pytest.mark.parametrize("named", [[launcher.CERTIFICATE], [launcher.KEY], [launcher.CERTIFICATE, launcher.KEY]])
def test_without_what_tls_needs_nothing_is_served(folder, named):
    serving = Front(folder)
    with serving.running(**{name: str(folder / "none.pem") for name in named}) as process:
        assert process.wait(30) == 1


def test_tls_is_not_given_up_for_a_text_that_is_not_recognised(folder, tmp_path):
    certificate, key = self_signed(tmp_path)
    serving = Front(folder)
    serving.file.write_text(serving.file.read_text().replace("frontend http_frontend", "frontend another"))
    with serving.running(**{launcher.CERTIFICATE: str(certificate), launcher.KEY: str(key)}) as process:
        assert process.wait(30) == 1


def test_tls_ends_at_haproxy_for_both_protocols(folder, tmp_path):
    certificate, key = self_signed(tmp_path)
    serving = Front(folder)
    environment = {launcher.CERTIFICATE: str(certificate), launcher.KEY: str(key)}
    with serving.running(**environment) as process:
        assert eventually(lambda: serving.told() == process.pid)
        trust = ssl.create_default_context(cafile=certificate)
        with httpx.Client(verify=trust) as client:
            assert is_refusal_to_come_again(client.get(f"https://127.0.0.1:{serving.http}/classify"))
        credentials = grpc.ssl_channel_credentials(certificate.read_bytes())
        with grpc.secure_channel(f"127.0.0.1:{serving.grpc}", credentials) as channel:
            assert refused(inference_pb2_grpc.GRPCInferenceServiceStub(channel)) == grpc.StatusCode.UNAVAILABLE
        with pytest.raises(httpx.TransportError):
            get(serving, "/classify")
