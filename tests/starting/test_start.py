"""`make serve` as a newcomer meets it: its start, its end, and what a killed run leaves."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import psutil
import pytest

from scripts.serve import leftovers
from tests.conftest import ROOT
from tests.serving.server import GRPC_PORT, HTTP_PORT, Server, config, eventually, post
from tests.serving.test_http import level


def listening():
    """Our ports that something listens on."""
    ports = {connection.laddr.port for connection in psutil.net_connections("tcp") if connection.status == "LISTEN"}
    return ports & {HTTP_PORT, GRPC_PORT, 8404, 9101}


def ray_processes():
    """Every process of Ray's or HAProxy's."""
    names = ("raylet", "gcs_server", "haproxy", "ray::")
    return [p.info for p in psutil.process_iter(["pid", "name"]) if (p.info["name"] or "").startswith(names)]


def test_ctrl_c_leaves_nothing(repository):
    with Server(config(repository, "separate")) as server:
        assert post(server, level(10)).status_code == 200
        assert "curl -H 'Content-Type: image/jpeg'" in server.log()
    assert server.process.returncode == 0
    assert server.stopped_in < 30
    assert not listening()
    assert eventually(lambda: not ray_processes(), 5), ray_processes()


def test_a_start_works_after_a_kill(repository):
    content = config(repository, "inline")
    server = Server(content).__enter__()
    server.process.kill()
    server.process.wait()
    with Server(content) as again:
        assert post(again, level(10)).status_code == 200
    assert not list(leftovers())


def test_the_token_is_on_and_private(repository):
    token = Path.home() / ".ray" / "auth_token"
    with Server(config(repository, "inline")):
        assert not token.stat().st_mode & 0o077
        script = "import ray; ray.init(address='auto', log_to_driver=False)"
        bare = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH")}
        stranger = {**bare, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64}
        refused = subprocess.run([sys.executable, "-c", script], env=stranger, capture_output=True, text=True)
        assert refused.returncode != 0
        assert "token" in refused.stderr.lower()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ingress": {"max_batch_size": 0}}, "ingress.max_batch_size"),
        ({"members": ["seven"]}, "no model 'seven'"),
    ],
)
def test_a_bad_configuration_ends_the_start_and_names_the_field(repository, tmp_path, change, message):
    content = config(repository, "inline", **change)
    with pytest.raises(AssertionError, match="did not start") as caught, Server(content):
        pass
    assert message in str(caught.value)
    assert "Traceback" not in str(caught.value)


def test_a_port_in_use_is_named(repository):
    listener = subprocess.Popen([sys.executable, "-m", "http.server", str(HTTP_PORT), "--bind", "127.0.0.1"])
    try:
        assert eventually(lambda: HTTP_PORT in listening(), 10)
        with pytest.raises(AssertionError, match=rf"127\.0\.0\.1:{HTTP_PORT} can't be listened on"):
            Server(config(repository, "inline")).__enter__()
    finally:
        listener.terminate()
        listener.wait()


PHOTOS = {"cat": "n02123045_tabby", "ship": "n03095699_container_ship", "frog": "n01644900_tailed_frog"}


def test_make_serve_answers_its_sample_and_photographs():
    environment = {**os.environ, "RAY_AUTH_MODE": "token"}
    with subprocess.Popen(["make", "serve"], cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as make:
        try:
            assert make.stdout is not None
            line = next((line for line in make.stdout if "curl" in line), None)
            assert line is not None, "it ended without a curl"
            curl = subprocess.run(line.strip(), shell=True, capture_output=True, text=True, check=True)
            assert '"label":"cat"' in curl.stdout
            data = os.environ.get("ENSEMBLE_DATA")
            for label, photo in PHOTOS.items() if data else ():
                image = (Path(data) / "photos" / f"{photo}.JPEG").read_bytes()
                answer = httpx.post("http://127.0.0.1:8000/classify?members=1", content=image).json()
                assert answer["label"] == label, (photo, answer)
                assert set(answer["members"]) == {"resnet", "densenet"}
            for protocol in ("http", "grpc"):
                command = [sys.executable, "-m", "scripts.classify", "--protocol", protocol, ROOT / "tests" / "cat.jpg"]
                shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
                assert "cat" in shown.stdout
        finally:
            make.send_signal(signal.SIGINT)
            pid = next((child.pid for child in psutil.Process(make.pid).children()), None)
            if pid is not None:
                os.kill(pid, signal.SIGINT)
            make.wait(60)
