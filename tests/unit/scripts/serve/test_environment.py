import os
import resource
import stat
import subprocess

import pytest

from scripts.errors import ScriptError
from scripts.serve import environment
from scripts.shipped import shipped


def read_by_a_shell(**environment):
    """What a shell has in its environment once it has read the switches."""
    command = f"set -a; . {shipped('configs/serve.env')}; env -0"
    done = subprocess.run(["/bin/sh", "-ec", command], env=environment, capture_output=True, text=True, check=True)
    return dict(pair.split("=", 1) for pair in done.stdout.split("\0") if pair)


def test_a_shell_reads_the_switches_alike():
    read = read_by_a_shell()
    switches = environment.switches()
    assert {name: read[name] for name in switches} == switches
    assert switches["RAY_SERVE_THROUGHPUT_OPTIMIZED"] == "1"


def test_what_the_environment_sets_stays(monkeypatch, tmp_path):
    monkeypatch.setattr(os, "environ", {"OMP_NUM_THREADS": "3", "RAY_AUTH_TOKEN_PATH": str(tmp_path / "a" / "token")})
    environment.set_up()
    assert os.environ["OMP_NUM_THREADS"] == "3"
    assert os.environ["RAY_SERVE_ENABLE_DIRECT_INGRESS"] == "0"
    token = tmp_path / "a" / "token"
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    first = token.read_text()
    assert len(first) == 64
    token.chmod(0o644)
    environment.set_up()
    assert token.read_text() == first
    assert stat.S_IMODE(token.stat().st_mode) == 0o600


@pytest.mark.parametrize("names", ["b3", "tracecontext, b3", "baggage,b3multi"])
def test_propagators_that_are_not_served_are_named_with_the_remedy(monkeypatch, names):
    monkeypatch.setenv("OTEL_PROPAGATORS", names)
    with pytest.raises(ScriptError, match=r"names b3(multi)?, .*: OTEL_PROPAGATORS= ensemble"):
        environment.check_propagators()
    for served in ("", "none", "tracecontext,baggage"):
        monkeypatch.setenv("OTEL_PROPAGATORS", served)
        environment.check_propagators()


def test_each_server_has_a_token_of_its_own_and_machines_of_a_cluster_share_one(monkeypatch, tmp_path):
    monkeypatch.setattr(environment, "TOKEN_FILE", tmp_path / "home" / "ray_token")
    tokens = []
    for name in ("a", "b", "home"):
        monkeypatch.setattr(os, "environ", {"ENSEMBLE_HOST_ADDRESS": "10.0.0.1"} if name == "home" else {})
        environment.set_up(tmp_path / name)
        assert os.environ[environment.TOKEN_PATH] == str(tmp_path / name / "ray_token")
        tokens.append((tmp_path / name / "ray_token").read_text())
    assert len(set(tokens)) == 3


def test_the_token_of_another_server_is_not_shared(monkeypatch, tmp_path):
    other = tmp_path / "ens-other" / "ray_token"
    monkeypatch.setattr(os, "environ", {environment.TOKEN_PATH: str(other)})
    environment.set_up(tmp_path / "ens-own")
    assert os.environ[environment.TOKEN_PATH] == str(tmp_path / "ens-own" / "ray_token")
    assert not other.parent.exists()


def test_a_token_that_another_user_could_put_there_is_refused(monkeypatch, tmp_path):
    (shared := tmp_path / "shared").mkdir()
    shared.chmod(0o777)
    monkeypatch.setattr(os, "environ", {environment.TOKEN_PATH: str(shared / "token")})
    with pytest.raises(ScriptError, match=f"can change {shared}.*or set RAY_AUTH_TOKEN_PATH"):
        environment.set_up()
    assert not list(shared.iterdir())


def test_a_token_of_ones_own_needs_no_file(monkeypatch):
    monkeypatch.setattr(os, "environ", {"RAY_AUTH_TOKEN": "0" * 64})
    environment.set_up()
    assert environment.TOKEN_PATH not in os.environ


def test_too_few_open_files_are_told_with_what_raises_them(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 256))
    with pytest.raises(ScriptError, match=r"256 open files, and the server needs 1024; .*ulimit -Hn"):
        environment.raise_file_limit()
