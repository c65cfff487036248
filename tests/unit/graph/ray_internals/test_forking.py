"""Ray's Python processes are forked, and are what they would be if they were started."""

import inspect
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import ray
from ray._private import services

from graph.ray_internals import fork_client, forking, switches
from scripts.serve.forks import started

pytestmark = pytest.mark.slow

# What a process is, as far as a script can tell.
SCRIPT = """
import json, os, random, sys
import numpy
import ray
threads = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("Threads"))
told = {
    "arguments": sys.argv[1:], "folder": os.getcwd(), "path": sys.path[0], "name": __name__,
    "environment": dict(os.environ), "group": os.getpgrp() == os.getpid(), "threads": threads,
    "ray": "ray.serve" in sys.modules, "ours": [n for n in sys.modules if n.split(".")[0] in ("deployments", "models")],
    "random": [random.random(), numpy.random.random()],
    "ids": [ray.WorkerID.from_random().hex(), ray.ObjectRef.from_random().hex()],
}
print(json.dumps(told), sys.stdin.readline())
"""


@pytest.fixture(scope="module")
def forks(tmp_path_factory):
    """The socket of a fork server."""
    path = tmp_path_factory.mktemp("forks") / "socket"
    server = started(path)
    yield path
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


def forked(forks, script, folder, *arguments, mode="stay", **environment):
    return run(forking.forked([sys.executable, "-u", str(script), *arguments], str(forks), mode), folder, **environment)


def test_a_forked_process_is_as_a_started_one(forks, script, tmp_path):
    told = forked(forks, script, tmp_path, "x", "", "y=z", A="b", EMPTY="")
    assert told["arguments"] == ["x", "", "y=z"]
    assert (told["folder"], told["path"], told["name"]) == (str(tmp_path), str(script.parent), "__main__")
    assert {"A": "b", "EMPTY": ""}.items() <= told["environment"].items()
    assert "RAY_JOB_ID" not in told["environment"]
    # It has imported Ray, without a thread that a fork would lack, and nothing that an upgrade of ours would change.
    assert (told["ray"], told["threads"], told["ours"]) == (True, 1, [])
    # Ray kills the group of a worker that ends.
    assert told["group"]


def test_two_forked_processes_do_not_draw_the_same(forks, script, tmp_path):
    first, second = (forked(forks, script, tmp_path) for _ in range(2))
    assert not {*first["random"], *first["ids"]} & {*second["random"], *second["ids"]}


def test_a_module_is_run_too(forks, tmp_path):
    command = forking.forked([sys.executable, "-P", "-m", "json.tool", "--compact"], str(forks), "stay")
    done = subprocess.run(command, input='{"a": 1}', capture_output=True, text=True, timeout=60)
    assert done.stdout == '{"a":1}\n'


def test_who_stays_ends_with_the_process_and_who_leaves_does_not_wait(forks, tmp_path):
    file = tmp_path / "waits.py"
    file.write_text("import sys; print('begun', flush=True); sys.stdin.read()")
    for mode, ends in (("leave", True), ("stay", False)):
        client = subprocess.Popen(
            forking.forked([sys.executable, str(file)], str(forks), mode), stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert client.stdout.readline() == b"begun\n"
        if ends:
            assert client.wait(60) == 0
            client.stdin.close()
        else:
            assert client.poll() is None
            client.stdin.close()
            assert client.wait(60) == 0


def test_without_a_fork_server_the_process_is_started(script, tmp_path):
    told = forked(tmp_path / "nothing", script, tmp_path, "x")
    assert (told["arguments"], told["ray"]) == (["x"], False)
    assert forking.forked(["command"], "") == ["command"]


def test_a_fork_server_that_ends_leaves_nobody_waiting(script, tmp_path):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        listener.listen()
        client = subprocess.Popen(
            forking.forked([sys.executable, str(script)], str(tmp_path / "socket")),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        listener.accept()[0].close()
    told, _ = client.communicate("a line\n", timeout=60)
    assert '"ray": false' in told


def test_a_worker_with_an_environment_of_its_own_is_started():
    setup, worker = str(Path(ray.__file__).with_name("setup_worker.py")), "default_worker.py"
    plain = ["python", setup, worker, "--language=PYTHON", "--serialized-runtime-env-context={}"]
    assert fork_client.wanted(plain) == [worker]
    assert fork_client.wanted(["python", "-u", "agent.py", "--x"]) == ["agent.py", "--x"]
    assert fork_client.wanted([*plain[:-1], '--serialized-runtime-env-context={"env_vars": {}}']) is None


def test_the_raylet_is_given_the_commands_by_these_names():
    source = inspect.getsource(services.start_raylet)
    assert all(f'"{name}=' in source for name in forking.STARTED)
    argument = "--python_worker_command=python setup_worker.py default_worker.py"
    name, _, command = forking.forking(argument, "/a/socket").partition("=")
    assert name == "--python_worker_command"
    assert command.endswith("/fork_client.py /a/socket leave python setup_worker.py default_worker.py")
    assert forking.forking("--node_id=1", "/a/socket") == "--node_id=1"
    assert forking.forking(argument, "") == argument


def test_ray_has_the_switches_and_what_is_set_stays(monkeypatch):
    raylet = Path(ray.__file__).with_name("core") / "src" / "ray" / "raylet" / "raylet"
    reporter = Path(ray.__file__).parent / "dashboard" / "modules" / "reporter" / "reporter_consts.py"
    known = raylet.read_bytes() + reporter.read_bytes()
    assert [name for name in switches.SWITCHES if name.removeprefix("RAY_").encode() not in known] == []
    name, value = "REPORTER_UPDATE_INTERVAL_MS", "1"
    monkeypatch.setattr(os, "environ", environment := {name: value})
    switches.set_switches()
    assert environment == {**switches.SWITCHES, name: value}
