"""Ray's Python processes are forked, and are what they would be if they were started."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import ray

from deployments.ray_internals import agent, compatibility, fork_client
from scripts.serve.cluster import SOCKET, fork_server_started, python

# What a process is, as far as a script can tell.
SCRIPT = """
import json, os, random, sys
import numpy
import ray
status = open(f"/proc/{os.getppid()}/status")
threads = next(int(line.split()[1]) for line in status if line.startswith("Threads"))
told = {
    "arguments": sys.argv[1:], "folder": os.getcwd(), "path": sys.path[0], "name": __name__,
    "environment": dict(os.environ), "group": os.getpgrp() == os.getpid(), "threads": threads,
    "ray": {"ray.dashboard.agent", "ray.serve"} <= {*sys.modules},
    "ours": [name for name in sys.modules if name.split(".")[0] in ("deployments", "graph", "models")],
    "random": [random.random(), numpy.random.random()],
    "ids": [each.from_random().hex() for each in (ray.WorkerID, ray.ObjectRef, ray.actor.ActorClassID)],
}
print(json.dumps(told), sys.stdin.readline())
"""


@pytest.fixture(scope="module")
def forks(tmp_path_factory):
    """The program that asks a fork server."""
    folder = tmp_path_factory.mktemp("forks")
    server = fork_server_started(folder / SOCKET)
    yield python(folder)
    server.kill()
    server.wait()


@pytest.fixture
def script(tmp_path):
    file = tmp_path / "script.py"
    file.write_text(SCRIPT)
    return file


def run(command, folder, **environment):
    done = subprocess.run(
        command, input="a line\n", capture_output=True, text=True, cwd=folder, env=environment, timeout=60
    )
    assert done.returncode == 0, done.stderr
    told, _, line = done.stdout.partition("} ")
    assert line.strip() == "a line"
    return json.loads(told + "}")


def forked(forks, script, folder, *arguments, **environment):
    return run([forks, "-u", str(script), *arguments], folder, **environment)


def test_a_forked_process_is_as_a_started_one(forks, script, tmp_path):
    told = forked(forks, script, tmp_path, "x", "", "y=z", A="b", EMPTY="")
    assert told["arguments"] == ["x", "", "y=z"]
    assert (told["folder"], told["path"], told["name"]) == (str(tmp_path), str(script.parent), "__main__")
    assert {"A": "b", "EMPTY": ""}.items() <= told["environment"].items()
    assert "RAY_JOB_ID" not in told["environment"]
    # It has imported Ray and Serve, nothing that an upgrade of ours changes; and the fork server, its parent, has no
    # thread that a fork would lack.
    assert (told["ray"], told["threads"], told["ours"]) == (True, 1, [])
    # Ray kills the group of a worker that ends.
    assert told["group"]


def test_two_forked_processes_do_not_draw_the_same(forks, script, tmp_path):
    first, second = (forked(forks, script, tmp_path) for _ in range(2))
    assert not {*first["random"], *first["ids"]} & {*second["random"], *second["ids"]}


def test_a_module_is_run_too(forks, tmp_path):
    done = subprocess.run(
        [forks, "-P", "-m", "json.tool", "--compact"], input='{"a": 1}', capture_output=True, text=True, timeout=60
    )
    assert done.stdout == '{"a":1}\n'


def test_an_error_that_ends_a_script_is_on_its_stderr(forks, tmp_path):
    (file := tmp_path / "script.py").write_text("raise PermissionError('the reason')")
    done = subprocess.run([forks, str(file)], capture_output=True, text=True, timeout=60)
    assert done.stderr.splitlines()[-1] == "PermissionError: the reason"


def test_a_client_ends_with_its_process_but_a_workers_does_not_wait(forks, tmp_path):
    for name, ends in ((fork_client.WORKER, True), ("agent.py", False)):
        file = tmp_path / name
        file.write_text("import sys; print('begun', flush=True); sys.stdin.read()")
        client = subprocess.Popen([forks, str(file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert client.stdout.readline() == b"begun\n"
        if ends:
            assert client.wait(60) == 0
            client.stdin.close()
        else:
            assert client.poll() is None
            client.stdin.close()
            assert client.wait(60) == 0


def test_without_a_fork_server_the_process_is_started(script, tmp_path):
    told = forked(python(tmp_path), script, tmp_path, "x")
    assert (told["arguments"], told["ray"]) == (["x"], False)


def test_a_fork_server_that_ends_leaves_nobody_waiting(script, tmp_path):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / SOCKET))
        listener.listen()
        command = [python(tmp_path), str(script)]
        client = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        listener.accept()[0].close()
    told, _ = client.communicate("a line\n", timeout=60)
    assert '"ray": false' in told


def test_a_fork_server_that_stands_still_leaves_nobody_waiting(script, tmp_path):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / SOCKET))
        listener.listen()
        source = Path(fork_client.__file__).read_text().replace("FORKED_WITHIN_S = 60", "FORKED_WITHIN_S = 0.1")
        (client := tmp_path / "client.py").write_text(source)
        command = [sys.executable, "-I", "-S", str(client), str(tmp_path / SOCKET), sys.executable, str(script)]
        client = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        # The request that nobody takes has the streams, too, so they do not end.
        client.stdin.write("a line\n")
        client.stdin.flush()
        assert '"ray": false' in client.stdout.readline()
        assert client.wait(60) == 0


def test_a_client_that_stands_still_holds_up_nobody(forks, script, tmp_path):
    path = Path(forks).parent / SOCKET
    with socket.socket(socket.AF_UNIX) as silent:
        silent.connect(str(path))
        assert forked(forks, script, tmp_path)["ray"]


def test_a_worker_with_an_environment_of_its_own_is_started():
    setup, worker = str(Path(ray.__file__).with_name("setup_worker.py")), "default_worker.py"
    plain = [setup, worker, "--language=PYTHON", "--serialized-runtime-env-context={}"]
    assert fork_client.script_of(plain) == [worker]
    assert fork_client.script_of(["-u", "agent.py", "--x"]) == ["agent.py", "--x"]
    own = [*plain[:-1], '--serialized-runtime-env-context={"env_vars": {}}']
    for each in (own, ["-X", "dev", "agent.py"], ["-c", "pass"], ["-u"], []):
        assert fork_client.script_of(each) is None


def test_a_dashboard_has_a_folder_without_code_whether_it_is_forked_or_not(forks, tmp_path):
    (tmp_path / fork_client.DASHBOARD).write_text(SCRIPT)
    for program in (forks, python(tmp_path)):
        assert run([program, "-u", str(tmp_path / fork_client.DASHBOARD)], tmp_path)["folder"] == fork_client.NO_CODE


def test_our_agent_runs_in_place_of_rays():
    given = ["-u", "/ray/dashboard/agent.py", "--x=/dashboard/agent.python"]
    assert fork_client.with_agent(given) == ["-u", "-P", "-m", agent.__name__, "--x=/dashboard/agent.python"]
    assert fork_client.script_of(fork_client.with_agent(given)) == ["-m", agent.__name__, given[-1]]


def test_a_dashboard_without_pages_is_left_out(tmp_path):
    assert subprocess.run([python(tmp_path), "dashboard.py", fork_client.NO_FRONTEND]).returncode == 0


def test_ray_has_the_switches_and_what_is_set_stays(monkeypatch):
    raylet = Path(ray.__file__).with_name("core") / "src" / "ray" / "raylet" / "raylet"
    reporter = Path(ray.__file__).parent / "dashboard" / "modules" / "reporter" / "reporter_consts.py"
    known = raylet.read_bytes() + reporter.read_bytes()
    assert [name for name in compatibility.SWITCHES if name.removeprefix("RAY_").encode() not in known] == []
    name, value = "RAY_worker_niceness", "1"
    monkeypatch.setattr(os, "environ", environment := {name: value})
    compatibility.set_switches()
    assert environment == {**compatibility.SWITCHES, name: value}
