"""What another user of the machine can do to a server: nothing but what docs/security.md lists."""

import json
import os
import stat
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import grpc
import httpx
import psutil
import pytest

from scripts.serve.folder import PREFIX, RAY
from tests import pictures
from tests.server.server import Server, config, eventually, post

STRANGER = Path(__file__).with_name("stranger_script.py")
OWN_BUILD = """
import json, pathlib, sys
from graph.app import build as ours

def build(args):
    pathlib.Path(__file__).with_name("path.json").write_text(json.dumps(sys.path))
    return ours(args)
"""
# No variable that names a folder or a token.
OWN = {"RAY_TMPDIR": None, "TMPDIR": None, "RAY_AUTH_TOKEN_PATH": None}
# A method of each server that Ray and Serve have, by which others could look or act.
METHODS = (
    "/ray.rpc.NodeInfoGcsService/GetAllNodeInfo",
    "/ray.rpc.NodeManagerService/GetNodeStats",
    "/ray.rpc.ObjectManagerService/Pull",
    "/ray.rpc.CoreWorkerService/GetCoreWorkerStats",
    "/ray.rpc.ReporterService/GetTraceback",
    "/ray.serve.ASGIService/HandleRequest",
)


@pytest.fixture(scope="module")
def server(repository, tmp_path_factory):
    """One as users start it: with no variable that names a folder or a token."""
    assert os.getuid() == 0, "only root can become another user: run this test as root"
    folder = tmp_path_factory.mktemp("served")
    (folder / "mine.py").write_text(OWN_BUILD)
    content = config(repository, "separate", front="direct", feedback={}, access={"operators": "anyone"})
    content["applications"][0]["import_path"] = "mine:build"
    with Server(content, folder=folder, **OWN) as server:
        # What is opened when it is used: a decoding process, and the lock of a change of the members.
        assert post(server, pictures.encode(pictures.noise(), ".png"), content_type="image/png").status_code == 200
        assert httpx.post(f"{server.url}/v2/repository/models/one/load", timeout=60).status_code == 200
        yield server


def processes(server):
    """All of its processes."""
    supervisor = psutil.Process(server.process.pid)
    return [supervisor, *supervisor.children(recursive=True)]


def private(server):
    """Its private folder."""
    [folder] = Path(server.told("ENSEMBLE_RAY_SESSION")).parents[1:2]
    assert folder.name.startswith(PREFIX)
    return folder


def opened(server):
    """What its processes have open, as (path or inode of a socket, whether to write)."""
    for process in processes(server):
        # A process may end, or close a file, meanwhile.
        with suppress(OSError):
            for link in Path(f"/proc/{process.pid}/fd").iterdir():
                with suppress(OSError):
                    flags = int(Path(f"/proc/{process.pid}/fdinfo/{link.name}").read_text().split()[3], 8)
                    yield os.readlink(link), flags & os.O_ACCMODE != os.O_RDONLY


def sockets(server):
    """The names of the Unix sockets that its processes have open; one that is not in a folder begins with `@`."""
    inodes = {path.removeprefix("socket:[").rstrip("]") for path, _ in opened(server) if path.startswith("socket:")}
    lines = (line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:])
    return {fields[7] for fields in lines if len(fields) == 8 and fields[6] in inodes}


def tried_by_a_stranger(folders=(), files=(), sockets=()):
    """What succeeds as another user, as (what, path)."""
    found = {"folders": folders, "files": files, "sockets": sockets}
    listed = json.dumps({name: sorted(map(str, paths)) for name, paths in found.items()})
    done = subprocess.run([sys.executable, STRANGER], input=listed, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return {tuple(each) for each in json.loads(done.stdout)}


def test_what_it_has_written_and_its_sockets_are_for_nobody_else(server):
    everything = list(private(server).rglob("*"))
    assert len(everything) > 20
    written = {Path(path) for path, to_write in opened(server) if to_write and path.startswith("/")}
    files = {path for path in {*everything, *written} if path.is_file()}
    folders = {private(server), *(path for path in everything if path.is_dir())}
    named = sockets(server) | {str(path) for path in everything if path.is_socket()}
    assert any("plasma" in name for name in named)
    # A name that is in no folder would be for all.
    assert [name for name in named if not name.startswith("/")] == []
    assert tried_by_a_stranger(folders=folders, files=files, sockets=named) == set()


def test_what_it_reads_is_not_for_others_to_change(server):
    files = {Path(path) for path, _ in opened(server) if path.startswith("/")}
    for process in processes(server):
        with suppress(psutil.Error):
            files |= {Path(mapped.path) for mapped in process.memory_maps()}
    files = {path for path in files if path.is_file() and stat.S_ISREG(path.stat().st_mode)}
    assert len(files) > 50
    folders = {above for path in files for above in path.parents}
    done = tried_by_a_stranger(files=files, folders=folders)
    # Anybody makes files in /tmp, and nobody replaces another's there.
    assert {each for each in done if each[0] not in {"lists", "reads"}} - {("plants", "/tmp")} == set()


def test_no_module_can_be_planted(server):
    folders = set(json.loads(Path(server._cwd, "path.json").read_text()))
    for process in processes(server):
        with suppress(psutil.Error, FileNotFoundError):
            folders |= {process.cwd(), *process.environ().get("PYTHONPATH", "").split(os.pathsep)}
    # What is no folder is a hook, an archive, or one that is not there and could be made.
    folders = {Path(folder) for folder in folders if folder.startswith("/")}
    assert server._cwd in folders
    assert Path("/proc") in folders
    above = {each for folder in folders for each in folder.parents}
    done = tried_by_a_stranger(folders=folders | above)
    assert {each for each in done if each[0] != "lists"} - {("plants", "/tmp")} == set()


def refusal(port):
    """What a port answers to whoever has no token: over HTTP, and by gRPC to each method that Ray has."""
    heard = set()
    with suppress(httpx.HTTPError):
        heard.add(httpx.get(f"http://127.0.0.1:{port}/api/serve/applications/", timeout=10).status_code)
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        for method in METHODS:
            try:
                channel.unary_unary(method)(b"", timeout=10)
                heard.add("OK")
            except grpc.RpcError as err:
                heard.add(err.code().name)
    return heard


def test_ports_are_documented_or_ask_for_the_token(server):
    ports = {
        each.laddr.port
        for process in processes(server)
        for each in process.net_connections("tcp")
        if each.status == psutil.CONN_LISTEN
    }
    assert server.ports <= ports
    heard = {port: refusal(port) for port in ports - server.ports}
    assert len(heard) > 8
    assert {port: each for port, each in heard.items() if not each & {401, "UNAUTHENTICATED"}} == {}
    assert {port: each for port, each in heard.items() if each & {200, "OK"}} == {}


def test_the_token_is_this_servers_alone_and_gone_with_it(server, repository):
    with Server(config(repository, "inline"), **OWN) as another:
        file = Path(another.told("RAY_AUTH_TOKEN_PATH"))
        assert file.parent == private(another)
        token = file.read_text()
        assert token != Path(server.told("RAY_AUTH_TOKEN_PATH")).read_text()
        # No log has it, and no command line that runs.
        texts = [path.read_bytes() for path in (private(another) / RAY).rglob("*") if path.is_file()]
        texts += [" ".join(process.cmdline()).encode() for process in processes(another)]
        assert not [text for text in texts if token.encode() in text]
    assert eventually(lambda: not file.parent.exists())
