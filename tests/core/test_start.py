"""`make serve` as a newcomer meets it: its start, its end, and what a killed run leaves."""

import os
import resource
import signal
import socket
import stat
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest
import yaml

from deployments.ingress.listeners.slot import FOLDER
from scripts.serve.cluster import MARK, leftovers
from tests.conftest import ROOT
from tests.levels import level
from tests.server.load import replicas
from tests.server.server import Server, config, eventually, post


def listening(server):
    """The server's ports that something listens on."""
    ports = {connection.laddr.port for connection in psutil.net_connections("tcp") if connection.status == "LISTEN"}
    return ports & server.ports


def descendants(server):
    """Every process that the server started."""
    return psutil.Process(server.process.pid).children(recursive=True)


def test_ctrl_c_leaves_nothing_and_prints_nothing_that_means_nothing(repository):
    # A service that the arguments leave off would be warned of.
    content = config(repository, "separate", feedback={})
    with Server(content) as server:
        assert post(server, level(10)).status_code == 200
        assert "curl -H 'Content-Type: image/jpeg'" in server.log()
        started = descendants(server)
        assert {"haproxy", "raylet"} <= {process.name() for process in started}
        assert listening(server) == server.ports
        environment = next(process for process in started if process.name() == "raylet").environ()
        sockets = Path(environment[FOLDER])
        assert stat.S_IMODE(sockets.stat().st_mode) == 0o700
    assert not sockets.exists()
    assert server.process.returncode == 0
    assert not listening(server)
    _, alive = psutil.wait_procs(started, timeout=5)
    assert not alive
    # A start on a busy machine says what it waits for.
    lines = [line for line in server.printed.splitlines() if line.strip() and not line.startswith("Still starting, ")]
    assert lines[0].startswith("Ready.")
    assert lines[-1] == "Stopping."
    assert len(lines) == 7, lines
    # What other shells read is gone with it.
    assert not Path(lines[5].split()[1]).exists()


@pytest.mark.parametrize("seconds", [0.3, 5])
def test_ctrl_c_at_any_moment_of_the_start(repository, seconds):
    server = Server(config(repository, "inline"))
    with pytest.raises(AssertionError, match="did not start") as caught:
        server.__enter__(interrupted_after=seconds)
    assert "Traceback" not in str(caught.value)
    assert not list(leftovers())


@pytest.fixture
def few_open_files():
    """Gives the processes that start meanwhile a low soft limit of open files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    yield 256
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def started_by(server):
    """The processes that a server has started, which it need not be there for."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK, "").startswith(f"{server.process.pid}@"):
                found.append(process)
        except psutil.Error:
            continue
    return found


def test_a_killed_server_leaves_nothing_and_starts_again_and_ends_with_its_ray(repository, few_open_files):
    server = Server(config(repository, "inline"))
    server.__enter__()
    [ingress] = replicas(server, "Ingress")
    assert ingress.rlimit(resource.RLIMIT_NOFILE)[0] > few_open_files
    assert {"haproxy", "raylet", "gcs_server"} <= {each.name() for each in started_by(server)}
    server.process.kill()
    # Its guardian ends what is left.
    assert eventually(lambda: not started_by(server), 60), started_by(server)
    server.process.wait()
    command = [Path(sys.executable).with_name("ensemble"), "deploy", server.folder / "config.yaml"]
    done = subprocess.run(command, env=server.environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, "the server has ended" in done.stderr) == (1, True), done
    with server:
        assert post(server, level(10)).status_code == 200
        assert not list(leftovers())
        started = descendants(server)
        next(process for process in started if process.name() == "raylet").kill()
        assert server.process.wait(60) == 1
        assert "Ray's raylet has ended" in server.log()
        _, alive = psutil.wait_procs(started, timeout=5)
        assert not alive


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ingress": {"max_batch_size": 0}}, "ingress.max_batch_size"),
        ({"members": ["seven"]}, "no model 'seven'"),
        (
            {"import_path": "graph.ap:build"},
            "import_path: there is no 'graph.ap:build'; did you mean 'graph.app:build'?",
        ),
    ],
)
def test_a_bad_configuration_ends_the_start_and_names_the_field(repository, change, message):
    content = config(repository, "inline", **change)
    if (path := content["applications"][0]["args"].pop("import_path", None)) is not None:
        content["applications"][0]["import_path"] = path
    with pytest.raises(AssertionError, match="did not start") as caught, Server(content):
        pass
    assert message in str(caught.value)
    assert "Traceback" not in str(caught.value)
    printed = str(caught.value).partition("\n--- ")[0]
    assert printed.count(message) == 1
    # What is said last is what is wrong.
    assert message in printed.splitlines()[-1]
    assert "Stopping." not in printed


def test_all_ports_in_use_are_named(repository):
    server = Server(config(repository, "inline"))
    with ExitStack() as taken:
        for port in server.ports:
            taken.enter_context(socket.create_server(("127.0.0.1", port)))
        with pytest.raises(AssertionError, match="did not start") as caught:
            server.__enter__()
    assert all(f"127.0.0.1:{port} (" in str(caught.value) for port in server.ports)
    assert "--ports-from" in str(caught.value)


PHOTOS = {"cat": "n02123045_tabby", "ship": "n03095699_container_ship", "frog": "n01644900_tailed_frog"}


def test_make_serve_answers_its_sample_and_photographs(tmp_path):
    # The default configuration, on ports that nobody else has.
    server = Server(yaml.safe_load((ROOT / "serve_config.yaml").read_text()))
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(server.content))
    command = ["make", "serve", f"CONFIG={tmp_path / 'config.yaml'}"]
    environment = {**server.environment, "RAY_AUTH_MODE": "token"}
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as make:
        try:
            assert make.stdout is not None
            line = next((line for line in make.stdout if "curl" in line), None)
            assert line is not None, "it ended without a curl"
            curl = subprocess.run(line.strip(), shell=True, capture_output=True, text=True, check=True)
            assert '"label":"cat"' in curl.stdout
            data = os.environ.get("ENSEMBLE_DATA")
            for label, photo in PHOTOS.items() if data else ():
                image = (Path(data) / "photos" / f"{photo}.JPEG").read_bytes()
                answer = post(server, image, members="1").json()
                assert answer["label"] == label, (photo, answer)
                assert set(answer["members"]) == {"resnet", "densenet"}
            for flags in (["--url", server.url], ["--protocol", "grpc", "--grpc", server.grpc]):
                command = [sys.executable, "-m", "ensemble_models.classify", *flags, ROOT / "tests" / "cat.jpg"]
                shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
                assert "cat" in shown.stdout
        finally:
            make.send_signal(signal.SIGINT)
            pid = next((child.pid for child in psutil.Process(make.pid).children()), None)
            if pid is not None:
                os.kill(pid, signal.SIGINT)
            make.wait(60)
            server.remove()


@pytest.mark.parametrize("without_keys", [False, True])
def test_beyond_loopback_it_starts_only_with_keys_or_a_word(repository, without_keys):
    content = config(repository, "inline", members=["none"] if without_keys else ["one"])
    content["http_options"]["host"] = "0.0.0.0"
    server = Server(content, flags=["--without-keys"] if without_keys else [])
    # With the word it gets as far as the model that there is not.
    told = "no model 'none'" if without_keys else "start it by ensemble serve --without-keys"
    with pytest.raises(AssertionError, match=told):
        server.__enter__()
