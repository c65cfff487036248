"""HAProxy beside replicas of a Ray that something else runs, behind a load balancer that asks whether it is ready."""

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import suppress

import grpc
import httpx
import pytest

from deployments.ingress.listeners import front as listening
from deployments.ingress.listeners import slot
from deployments.ingress.listeners.front import services
from deployments.ingress.listeners.grpc import GrpcListener
from deployments.ingress.listeners.http import HttpListener
from deployments.ingress.protocol import resolve
from scripts.errors import ScriptError
from scripts.serve.ports import METRICS_SETTING
from scripts.serve.sidecar import shared_folder
from tests.door import Door
from tests.server.server import eventually, free_ports
from tests.unit.scripts.serve.test_haproxy import Front, answering, folder, get

__all__ = ["folder"]
READY = "/v2/health/ready"


def is_taking(front):
    """Whether HAProxy takes connections of gRPC."""
    with suppress(OSError), socket.create_connection(("127.0.0.1", front.grpc)):
        return True
    return False


def test_only_this_user_can_change_the_folder_of_the_sockets(tmp_path, monkeypatch):
    monkeypatch.delenv(slot.FOLDER, raising=False)
    with pytest.raises(ScriptError, match=f"set {slot.FOLDER}"):
        shared_folder()
    monkeypatch.setenv(slot.FOLDER, str(tmp_path / "front"))
    assert shared_folder() == shared_folder() == tmp_path / "front"
    (tmp_path / "front").chmod(0o750)
    with pytest.raises(ScriptError, match="not a folder of this user alone"):
        shared_folder()
    (tmp_path / "front").chmod(0o700)
    tmp_path.chmod(0o777)
    with pytest.raises(ScriptError, match="other users of this machine can change"):
        shared_folder()


@pytest.mark.skipif(os.getuid() != 0 or shutil.which("unshare") is None, reason="needs a mount namespace")
def test_a_volume_in_another_volume_of_the_same_disk_is_known(tmp_path):
    for name in ("tmp", "tmp/ray", "ray"):
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(0o777)
    code = "from scripts.serve.sidecar import shared_folder\nshared_folder()"
    mounted = f"mount --bind {tmp_path}/ray {tmp_path}/tmp/ray && exec {sys.executable} -c '{code}'"
    environment = {**os.environ, slot.FOLDER: f"{tmp_path}/tmp/ray/front"}
    done = subprocess.run(["unshare", "--mount", "sh", "-c", mounted], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr


def test_replicas_beside_it_serve_every_installed_service(tmp_path, monkeypatch):
    monkeypatch.setenv(slot.FOLDER, str(tmp_path))
    monkeypatch.delenv(slot.FUNCTIONS, raising=False)
    assert set(services(())) == {service for each in resolve() for service in each.services}


def test_the_last_replica_is_announced_before_it_leaves(folder):
    with Front(folder, is_balanced=True) as front, answering(folder) as last:
        with answering(folder) as first:
            assert not first.announce()
        assert get(front, READY).status_code == 200
        assert last.announce()
        ready, other = get(front, READY), get(front, "/x")
        assert (ready.status_code, ready.headers["retry-after"]) == (503, "1")
        # It is answered; the client's next connection may reach another machine.
        assert (other.status_code, other.headers["connection"]) == (200, "close")
        last.open()
        assert get(front, READY).status_code == 200
        assert "connection" not in get(front, "/x").headers


async def test_a_replica_that_ends_listens_on_while_the_load_balancer_notices(folder, monkeypatch):
    monkeypatch.setattr(listening, "NOTICE_S", 3600)
    replica = listening.Front(folder, HttpListener(Door()._http), GrpcListener(None, lambda: 1000, []))
    with Front(folder, is_balanced=True) as front:
        await replica.keep_open()
        ending = asyncio.create_task(replica.close())
        while (await asyncio.to_thread(get, front, READY)).status_code != 503:
            await asyncio.sleep(0.01)
        assert slot.opened(folder) == [1]
        assert not ending.done()
        ending.cancel()
        monkeypatch.setattr(listening, "NOTICE_S", 0)
        await replica.close()
        assert slot.opened(folder) == []


async def test_no_client_of_grpc_notices_that_the_last_replica_ends(folder, monkeypatch, capfd):
    monkeypatch.setattr(listening, "NOTICE_S", 0)
    monkeypatch.setattr(listening, "DISMISS_S", 3600)

    def replica():
        return listening.Front(folder, HttpListener(Door()._http), GrpcListener(None, lambda: 1000, []))

    async def status(**given):
        with pytest.raises(grpc.RpcError) as raised:
            await asyncio.to_thread(channel.unary_unary("/no.Service/Method"), b"", timeout=30, **given)
        return raised.value.code()

    with Front(folder, is_balanced=True) as front:
        first, before = replica(), front.pid
        await first.keep_open()
        with grpc.insecure_channel(f"127.0.0.1:{front.grpc}") as channel:
            assert await status() is grpc.StatusCode.UNIMPLEMENTED
            ending = asyncio.create_task(first.close())
            while is_taking(front):
                await asyncio.sleep(0.01)
            # It is answered; the client's next connection would reach another machine.
            assert await status() is grpc.StatusCode.UNIMPLEMENTED
            assert await status() is grpc.StatusCode.UNAVAILABLE
        ending.cancel()
        monkeypatch.setattr(listening, "DISMISS_S", 0)
        await first.close()
        assert await asyncio.to_thread(eventually, lambda: is_taking(front))
        assert front.pid != before
        following = replica()
        await following.keep_open()
        with grpc.insecure_channel(f"127.0.0.1:{front.grpc}") as channel:
            assert await status(wait_for_ready=True) is grpc.StatusCode.UNIMPLEMENTED
        await following.close()
    assert "warning" not in capfd.readouterr().err


def test_a_haproxy_that_a_killed_replica_left_without_grpc_is_started_again(folder):
    with Front(folder, is_balanced=True) as front, answering(folder) as replica:
        replica.dismiss()
        replica.open()
        assert eventually(lambda: is_taking(front))
        assert eventually(lambda: get(front, READY).status_code == 200)


def test_without_a_load_balancer_a_replica_need_not_wait(folder):
    with Front(folder) as front, answering(folder) as replica:
        assert not replica.announce()
        assert get(front, READY).status_code == 200


def test_the_command_answers_by_a_replica_and_is_not_ready_before_it_ends(folder):
    first, *_ = free_ports(3)
    environment = {**os.environ, slot.FOLDER: str(folder / "front"), METRICS_SETTING: str(first + 2)}
    logs = folder / "session_latest" / "logs" / "serve"
    logs.mkdir(parents=True)
    folder.chmod(0o700)
    url = f"http://127.0.0.1:{first}"

    def status(path=READY):
        try:
            return httpx.get(f"{url}{path}").status_code
        except httpx.TransportError:
            return None

    config = {"http_options": {"host": "127.0.0.1", "port": first}, "grpc_options": {"port": first + 1}}
    command = [sys.executable, "-c", f"from scripts.serve.sidecar import front; front({config})"]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert eventually(lambda: status() == 503)
            with answering(folder / "front"):
                assert eventually(lambda: status() == 200)
                (logs / "replica.log").write_text("ERROR 2026-11-27 08:00:00 e_Ingress r -- it is broken\n")
                assert '"message": "it is broken"' in process.stderr.readline()
                process.send_signal(signal.SIGTERM)
                assert eventually(lambda: status() == 503)
                assert status("/x") == 200
        finally:
            # The second signal ends it at once.
            process.send_signal(signal.SIGTERM)
            process.wait(30)
