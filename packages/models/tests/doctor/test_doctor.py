import json
import re
import socket
import subprocess
import sys
import tempfile
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest
import yaml

from ensemble_models.doctor import Finding, machine, software
from ensemble_models.doctor.__main__ import examine
from graph.config import parse
from scripts.home import SETTING
from scripts.serve.environment import TOKEN_PATH
from scripts.serve.ports import METRICS_SETTING, Port
from tests.conftest import ROOT
from tests.server.server import config


def test_a_port_that_is_taken_is_named_with_what_moves_it():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        [finding] = machine.ports([Port("127.0.0.1", number, "http_options.port")])
    assert finding.verdict == "wrong"
    assert str(number) in finding.what
    assert "http_options.port" in finding.what
    assert "--ports-from" in finding.remedy


def test_its_own_running_server_takes_no_wrong_ports():
    """It said "wrong" four times, of ports that its own server had."""

    class Server(BaseHTTPRequestHandler):
        def do_GET(self):
            content = json.dumps({"name": names[0], "extensions": []}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_):
            pass

    names = ["ensemble"]
    with HTTPServer(("127.0.0.1", 0), Server) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        ports = [Port("127.0.0.1", server.server_port, "http_options.port")] * 2
        [finding] = machine.ports(ports)
        assert (finding.verdict, "runs here already" in finding.what) == ("ok", True)
        names[0] = "another"
        assert [finding.verdict for finding in machine.ports(ports)] == ["wrong", "wrong"]
        server.shutdown()


def test_replicas_that_find_no_place():
    deployments = [{"name": "a", "ray_actor_options": {"num_cpus": 50}}]
    content = {"applications": [{"deployments": deployments}]}
    assert machine.placement(content).verdict == "wrong"
    assert "a replica of a reserves 50 CPUs" in machine.placement(content).what
    deployments[0]["ray_actor_options"] = {"num_cpus": 0.1}
    assert machine.placement(content).verdict == "ok"


def test_more_threads_than_cores(monkeypatch):
    monkeypatch.setattr(machine, "available_cores", lambda: 4)

    def found(threads, replicas, **more):
        members = [{"name": name, "threads": threads} for name in ("resnet", "densenet")]
        return machine.threads(parse({"members": members, **more}), replicas)

    assert found(2, {}).verdict == "ok"
    assert found(None, {"resnet": 2, "densenet": 2}).verdict == "ok"
    assert found(2, {"resnet": 2}).verdict == "look"
    assert "resnet: 4, densenet: 2" in found(2, {"resnet": 2}).what
    assert "threads" in found(2, {"resnet": 2}).remedy
    # Three replicas of two threads on eight cores.
    monkeypatch.setattr(machine, "available_cores", lambda: 8)
    unused = machine.threads(parse({"members": [{"name": "resnet"}]}), {"resnet": 3})
    assert (unused.verdict, "2 cores are unused" in unused.what) == ("look", True)
    monkeypatch.setattr(machine, "available_cores", lambda: 4)
    monkeypatch.setattr(machine, "available_cores", lambda: 1)
    assert (found(None, {}).verdict, found(None, {}).remedy) == ("look", "give it more CPUs")
    monkeypatch.setattr(machine, "available_cores", lambda: 4)
    # The members of a cascade take turns.
    cascade = {"cascade": {"order": ["resnet", "densenet"], "exit_at": [0.5]}}
    assert found(2, {"resnet": 2}, ensemble=cascade).verdict == "ok"


def test_memory():
    assert machine.memory(100, machine.GIB).verdict == "look"
    assert machine.memory(1, machine.GIB).verdict == "ok"


def test_instructions():
    assert machine.instructions({"avx2"}).verdict == "look"
    assert "version: 1" in machine.instructions({"avx2"}).remedy
    assert "VNNI" in machine.instructions({"avx512_vnni"}).what


@pytest.mark.parametrize(
    ("line", "by"),
    [
        ("flags\t\t: fpu avx2 avx512_vnni", "int8 by AVX-512 VNNI, bf16 by none"),
        # Of a Graviton3, and of a Graviton2.
        ("Features\t: fp asimd asimddp sve i8mm bf16", "int8 by I8MM and SDOT, bf16 by BF16"),
        ("Features\t: fp asimd asimddp", "int8 by SDOT, bf16 by none"),
    ],
)
def test_instructions_are_named_on_intel_and_on_arm(line, by, tmp_path, monkeypatch):
    (file := tmp_path / "cpuinfo").write_text(f"processor\t: 0\n{line}\n")
    monkeypatch.setattr(machine, "CPU_INFO", file)
    assert machine.instructions().what.endswith(by)
    assert machine.instructions().verdict == "ok"


def test_a_token_that_others_can_read(tmp_path, monkeypatch):
    token = tmp_path / "token"
    monkeypatch.setenv(TOKEN_PATH, str(token))
    assert "will be made" in machine.token().what
    token.touch(0o644)
    assert (machine.token().verdict, machine.token().remedy) == ("look", f"chmod 600 {token}")
    token.chmod(0o600)
    assert machine.token().verdict == "ok"


def test_a_place_in_which_others_can_put_another_folder(monkeypatch):
    (around := Path(tempfile.mkdtemp(prefix="es-", dir="/tmp"))).chmod(0o777)
    monkeypatch.setenv(SETTING, str(around))
    found = machine.folder()
    assert (found.verdict, found.remedy.startswith(f"if it is yours, run `chmod go-w {around}`")) == ("wrong", True)
    around.chmod(0o755)
    assert machine.folder().verdict == "ok"
    around.rmdir()


def test_versions():
    assert software.installed(["numpy>=1", 'nothing-of-this-name; extra == "dev"']).verdict == "ok"
    finding = software.installed(["numpy<1", "nothing-of-this-name; python_version > '3'"])
    assert finding.verdict == "wrong"
    assert "numpy" in finding.what
    assert "nothing-of-this-name is missing" in finding.what
    # Also where there is no checkout, and so no requirements.lock.
    assert finding.remedy == "pip install 'numpy<1' nothing-of-this-name"


def test_haproxy_is_run():
    assert software.haproxy().verdict == "ok"


def test_without_haproxy_in_front_it_and_its_port_are_not_looked_at(repository, monkeypatch):
    monkeypatch.setattr(software, "application", lambda given, serve: [])
    monkeypatch.setattr(software, "haproxy", lambda: Finding("wrong", "HAProxy can't be run"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setenv(METRICS_SETTING, str(taken.getsockname()[1]))
        content = config(repository, "inline", front="serve")
        wrong = [found.what for found in examine(content) if found.verdict == "wrong"]
    assert not any("HAProxy" in what or METRICS_SETTING in what for what in wrong)


def run(content, folder, *flags):
    file = folder / "config.yaml"
    file.write_text(yaml.safe_dump(content))
    command = [sys.executable, "-m", "scripts.cli", "doctor", str(file), *flags]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def test_one_image_through_each_node(repository, tmp_path):
    done = run(config(repository, "separate"), tmp_path, "--json")
    assert done.stdout, done.stderr
    told = [each["what"] for each in json.loads(done.stdout)]
    for node in ("decode", "predict one", "predict six", "predict brightness", "combine", "label"):
        assert any(what.startswith(f"one image, {node}: ") for what in told), (node, told)


def test_a_configuration_that_is_wrong(repository, tmp_path):
    content = config(repository, "inline")
    content["applications"][0]["args"]["members"][0]["model"] = "nowhere"
    done = run(content, tmp_path)
    assert done.returncode == 1
    line = next(line for line in done.stdout.splitlines() if line.startswith("wrong configuration"))
    assert "nowhere" in line
    assert " → " in line


def test_what_serve_refuses_is_named(repository, tmp_path):
    done = run(config(repository, "inline") | {"logging_config": {"enable_access_log": "maybe"}}, tmp_path)
    assert (done.returncode, done.stderr) == (1, "")
    assert re.search(
        r"wrong configuration: line \d+: logging_config\.enable_access_log: ", done.stdout.splitlines()[-1]
    )


WRONG = (
    "[",
    "- a list",
    "http_options: 8000",
    "applications: [{deployments: [Ingress]}]",
    "applications: [{deployments: {name: Ingress}}]",
    "applications: [{args: members}]",
)


@pytest.mark.parametrize("text", WRONG)
def test_a_file_that_is_no_configuration(tmp_path, text):
    (tmp_path / "bad.yaml").write_text(text)
    command = [sys.executable, "-m", "ensemble_models.doctor", tmp_path / "bad.yaml"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, "")
    assert re.match(r"wrong +configuration: ", done.stdout.splitlines()[-1])
