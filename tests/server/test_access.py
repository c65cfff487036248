"""Who may come in: a server with API keys and TLS, asked by real clients."""

import ipaddress
import os
import re
import shlex
import ssl
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import grpc
import httpx
import psutil
import pytest
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from ensemble_serving.protocol import inference_pb2 as pb
from scripts import keys
from scripts.serve.exposure import CERTIFICATE, CERTIFICATE_KEY
from tests.certificates import self_signed
from tests.conftest import ROOT
from tests.levels import level
from tests.server.clients import Calls, infer_request
from tests.server.seen import browser
from tests.server.server import Server, config, eventually, scrape
from tests.stub import GRPCInferenceServiceStub

INFER = "/v2/models/ensemble/infer"
JPEG = {"Content-Type": "image/jpeg"}


def watch(server, seen, done):
    """Ask again and again, and note every answer that is no success."""
    while not done.is_set():
        try:
            answer = httpx.get(f"{server.url}/v2/models/ensemble", verify=False)
        except httpx.TransportError:
            continue
        seen.add((answer.status_code, answer.headers.get("retry-after")))


@pytest.fixture(scope="module")
def running(repository, tmp_path_factory):
    """A server with keys and TLS, clients that trust it, and what was answered while it started."""
    folder = tmp_path_factory.mktemp("access")
    certificate, key = self_signed(folder)
    file = folder / "keys"
    mobile, slow = keys.add(file, "mobile", None), keys.add(file, "slow", 0.01)
    operator = keys.add(file, "operator", None)
    # On, so that the OpenAPI document has every path.
    on = {"access": {"keys": str(file), "operators": ["operator"]}, "ingress": {"shared_memory_prefix": "access"}}
    content = config(repository, "inline", **on, feedback={})
    server = Server(content, **{CERTIFICATE: str(certificate), CERTIFICATE_KEY: str(key)})
    seen, done = set(), threading.Event()
    watcher = threading.Thread(target=watch, args=(server, seen, done))
    watcher.start()
    try:
        with server:
            done.set()
            trust = ssl.create_default_context(cafile=certificate)
            credentials = grpc.ssl_channel_credentials(certificate.read_bytes())
            with (
                httpx.Client(base_url=server.url, verify=trust, timeout=60) as client,
                grpc.secure_channel(server.grpc, credentials) as channel,
            ):
                yield SimpleNamespace(
                    server=server,
                    http=client,
                    channel=channel,
                    certificate=certificate,
                    file=file,
                    mobile=mobile,
                    operator=operator,
                    slow=slow,
                    seen=seen,
                )
    finally:
        done.set()
        watcher.join()


def bearer(key):
    return {"Authorization": f"Bearer {key}"}


def ask(running, **headers):
    return running.http.post("/classify", content=level(10), headers={**JPEG, **headers})


def ask_grpc(running, *metadata):
    """A call's status and details."""
    stub = GRPCInferenceServiceStub(running.channel)
    try:
        stub.ModelInfer(infer_request([level(10)]), metadata=metadata, timeout=60)
    except grpc.RpcError as err:
        return err.code().name, err.details(), dict(err.trailing_metadata())
    return "OK", "", {}


def test_while_it_starts_nobody_is_told_that_there_is_nothing(running):
    # Once it is there, the watcher is asked for a key, which it has not.
    assert running.seen <= {(503, "1"), (401, None)}
    assert (503, "1") in running.seen


@pytest.mark.parametrize(
    "header", [{}, {"Authorization": "Basic YTpi"}, bearer("ens_none")], ids=["none", "basic", "bad"]
)
def test_without_a_key_nobody_comes_in(running, header):
    answer = ask(running, **header)
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "unauthenticated")
    assert answer.headers["www-authenticate"] == "Bearer"
    answer = running.http.post(INFER, json={}, headers=header)
    assert (answer.status_code, answer.json()["error"].partition(":")[0]) == (401, "unauthenticated")
    assert running.http.get("/v2/models/ensemble", headers=header).status_code == 401
    metadata = [(name.lower(), value) for name, value in header.items()]
    status, details, _ = ask_grpc(running, *metadata)
    assert (status, details.partition(":")[0]) == ("UNAUTHENTICATED", "unauthenticated")


def test_with_a_key_everybody_does(running):
    answer = ask(running, **bearer(running.mobile))
    assert (answer.status_code, answer.json()["label"] is not None) == (200, True)
    assert running.http.get("/v2/models/ensemble", headers=bearer(running.mobile)).status_code == 200
    assert ask_grpc(running, ("authorization", f"Bearer {running.mobile}"))[0] == "OK"
    stub = GRPCInferenceServiceStub(running.channel)
    metadata = [("authorization", f"Bearer {running.mobile}")]
    assert stub.ServerMetadata(pb.ServerMetadataRequest(), metadata=metadata).name == "ensemble"


def test_operators_alone_load_members(running):
    def load(header):
        answer = running.http.post("/v2/repository/models/one/load", headers=header)
        return answer.status_code, answer.json().get("error", "").partition(":")[0]

    def load_grpc(*metadata):
        request = pb.RepositoryModelLoadRequest(model_name="one")
        try:
            GRPCInferenceServiceStub(running.channel).RepositoryModelLoad(request, metadata=metadata)
        except grpc.RpcError as err:
            return err.code().name
        return "OK"

    assert load({}) == (401, "unauthenticated")
    assert load_grpc() == "UNAUTHENTICATED"
    assert load(bearer(running.mobile)) == (403, "forbidden")
    assert load_grpc(("authorization", f"Bearer {running.mobile}")) == "PERMISSION_DENIED"
    assert load(bearer(running.operator)) == (200, "")
    assert load_grpc(("authorization", f"Bearer {running.operator}")) == "OK"


def test_health_and_documents_are_open_and_the_rest_of_grpc_is_not(running):
    for path in ("/v2/health/live", "/v2/health/ready", "/v2/models/ensemble/ready", "/docs", "/openapi.json"):
        assert running.http.get(path).status_code == 200
    stub = GRPCInferenceServiceStub(running.channel)
    assert stub.ServerLive(pb.ServerLiveRequest()).live
    assert stub.ServerReady(pb.ServerReadyRequest()).ready
    assert stub.ModelReady(pb.ModelReadyRequest(name="ensemble")).ready
    for call, request in (
        (stub.ServerMetadata, pb.ServerMetadataRequest()),
        (stub.ModelMetadata, pb.ModelMetadataRequest(name="ensemble")),
    ):
        with pytest.raises(grpc.RpcError) as caught:
            call(request)
        assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED
    # Reflection is answered before anybody is asked for a key.
    reflection = reflection_pb2_grpc.ServerReflectionStub(running.channel)
    with pytest.raises(grpc.RpcError) as caught:
        list(reflection.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")])))
    assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED


OPEN_PATHS = {
    "/docs",
    "/openapi.json",
    "/v2/health/live",
    "/v2/health/ready",
    *(f"/v2/models/{name}/ready" for name in ("ensemble", "one", "six", "brightness")),
}
HEALTH = "/grpc.health.v1.Health"
OPEN_CALLS = {
    *(f"/inference.GRPCInferenceService/{name}" for name in ("ServerLive", "ServerReady", "ModelReady")),
    *(f"{HEALTH}/{name}" for name in ("Check", "Watch")),
}


def answered(call):
    """The status of a call with an empty message, or OK once a first message is there: a stream may have no end."""
    answers = call(b"", timeout=60)
    try:
        next(answers)
    except grpc.RpcError as err:
        return err.code().name
    answers.cancel()
    return "OK"


def test_what_is_not_named_as_open_asks_for_a_key(running):
    """Every path and every call that there is, whoever adds one."""
    for path, operations in running.http.get("/openapi.json").json()["paths"].items():
        for method in operations:
            status = running.http.request(method, path).status_code
            assert (status != 401) == (path in OPEN_PATHS), (method, path, status)
    functions = running.server.content["grpc_options"]["grpc_servicer_functions"]
    names = Calls(functions).names
    assert names > OPEN_CALLS
    refused = {name for name in names if answered(running.channel.unary_stream(name)) == "UNAUTHENTICATED"}
    assert names - refused == OPEN_CALLS


def test_a_key_has_a_rate_of_its_own(running):
    assert ask(running, **bearer(running.slow)).status_code == 200
    answer = ask(running, **bearer(running.slow))
    assert (answer.status_code, answer.json()["error"]["code"]) == (429, "rate_limited")
    assert 1 < int(answer.headers["retry-after"]) <= 100
    status, details, trailers = ask_grpc(running, ("authorization", f"Bearer {running.slow}"))
    assert (status, details.partition(":")[0]) == ("RESOURCE_EXHAUSTED", "rate_limited")
    assert 1000 < int(trailers["grpc-retry-pushback-ms"]) <= 100_000
    assert ask(running, **bearer(running.mobile)).status_code == 200


def test_keys_come_and_go_while_it_serves(running):
    late = keys.add(running.file, "late", None)
    assert eventually(lambda: ask(running, **bearer(late)).status_code == 200)
    keys.remove(running.file, "late")
    assert eventually(lambda: ask(running, **bearer(late)).status_code == 401)


def test_requests_are_counted_by_the_name_of_their_key(running):
    # By what this test asks, whatever others did.
    for header in ({}, bearer(running.mobile)):
        ask(running, **header)

    def counted():
        samples = scrape(running.server, "ray_ensemble_key_requests_total")
        return {(labels["key"], labels["outcome"]) for labels, value in samples if value > 0}

    assert eventually(lambda: counted() >= {("mobile", "admitted"), ("", "unauthenticated")}, 60)
    assert not any(running.mobile in line for line in running.server.log().splitlines())


def test_the_curl_that_it_prints_works_with_a_key_and_plain_http_does_not(running):
    line = next(line for line in running.server.log().splitlines() if "curl" in line).strip()
    command = shlex.split(line)
    assert "--cacert" in command
    # A placeholder stands for the key.
    environment = {**os.environ, "ENSEMBLE_API_KEY": running.mobile}
    done = subprocess.run(line, shell=True, env=environment, capture_output=True, text=True, check=True)
    assert '"label"' in done.stdout
    with pytest.raises(httpx.TransportError):
        httpx.get(running.server.url.replace("https", "http"))
    with grpc.insecure_channel(running.server.grpc) as channel, pytest.raises(grpc.RpcError) as caught:
        GRPCInferenceServiceStub(channel).ServerLive(pb.ServerLiveRequest())
    assert caught.value.code() == grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_the_command_line_client_shows_its_key(running, protocol):
    command = [sys.executable, "-m", "ensemble_models.classify", "--protocol", protocol, "--ca", running.certificate]
    command += ["--url", running.server.url, "--grpc", running.server.grpc, ROOT / "tests" / "cat.jpg"]
    for key, told in ((running.mobile, "label"), ("", "a key is needed")):
        environment = {**os.environ, "ENSEMBLE_API_KEY": key}
        shown = subprocess.run([*command, "--json"], capture_output=True, text=True, cwd=ROOT, env=environment)
        assert told in shown.stdout, shown.stderr


def test_what_listens_beyond_loopback_is_what_the_documents_name(running):
    """A replica's listener for handles, which Serve has no address for: docs/security.md."""
    beyond = []
    for process in psutil.Process(running.server.process.pid).children(recursive=True):
        for connection in process.net_connections("tcp"):
            address = ipaddress.ip_address(connection.laddr.ip or "::")
            mapped = getattr(address, "ipv4_mapped", None) or address
            if connection.status == psutil.CONN_LISTEN and not mapped.is_loopback:
                beyond.append((re.sub(r"\W.*", "", process.name().removeprefix("ray::")), connection.laddr.port))
    ports = {port for _, port in beyond}
    first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    # It has a port of its own at each start. configs/nftables.conf has the range.
    assert len(beyond) == 1, beyond
    assert all(first <= port <= last for port in ports)


@pytest.mark.skipif(not (browser.PROGRAM and browser.DRIVER), reason="no chromium and chromedriver")
def test_the_page_opens_without_a_key_and_its_calls_ask_for_one(running):
    with browser.chromium() as page:
        page.get(running.server.url)
        # What it recognizes is shown to owners of a key.
        about = page.find_element(By.ID, "about")
        assert eventually(page.find_element(By.ID, "ask-about").is_displayed)
        assert not about.is_displayed()
        browser.hand_over(page, "drop", "grey.png", "image/png", level(10))
        dialog, field = page.find_element(By.ID, "keys"), page.find_element(By.ID, "key")
        assert eventually(dialog.is_displayed)
        assert page.switch_to.active_element == field
        field.send_keys("wrong", Keys.ENTER)
        # A key that is refused is asked for again.
        assert eventually(lambda: dialog.is_displayed() and field.get_attribute("value") == "")
        field.send_keys(running.mobile, Keys.ENTER)
        assert "level" in browser.card(page, "grey.png").find_element(By.CLASS_NAME, "label").text
        assert eventually(about.is_displayed)
        # Not asked for again, and kept nowhere.
        browser.hand_over(page, "drop", "again.png", "image/png", level(10))
        assert "level" in browser.card(page, "again.png").text
        assert page.execute_script("return [localStorage.length, sessionStorage.length, document.cookie]") == [0, 0, ""]
        assert browser.complaints(page) == []
