"""Places to fetch models from: others' S3, GCS and Azure, in environments of their own, a website, and a small Hub."""

import hashlib
import http.server
import json
import os
import ssl
import subprocess
import threading
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote, urlsplit

import httpx

from deployments.repository.address import source_class
from tests.environments import environment, node
from tests.networks import constant, one_hot, store
from tests.server.server import eventually, free_ports

# Where the packages of the emulators are locked.
HERE = Path(__file__).parents[1] / "packages" / "plugins" / "sources" / "tests"


def write(root, version, winner=None, name="m", **more):
    """A version whose only class is its number."""
    return store(root, name, constant(one_hot(version if winner is None else winner)), version, **more)


def opened(location):
    """The repository at a location, which no other test has opened."""
    return source_class(location.scheme)(location)


def _bucket_server(program, *arguments):
    return [environment("buckets", HERE / "requirements-buckets.lock").with_name(program), *arguments]


def _azurite(port):
    python = environment("azurite", HERE / "azurite" / "requirements.lock", HERE / "azurite")
    program = python.parent.parent / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
    # A driver may be newer than what it knows of Azure's versions.
    flags = ["--inMemoryPersistence", "--disableTelemetry", "--skipApiVersionCheck", "--silent"]
    return [node(python), program, "--blobPort", str(port), *flags]


PROGRAMS = {
    "s3": lambda port: _bucket_server("moto_server", "-H", "127.0.0.1", "-p", str(port)),
    "gs": lambda port: _bucket_server(
        "gcp-storage-emulator", "start", "--in-memory", "--host", "127.0.0.1", "--port", str(port)
    ),
    "az": _azurite,
}


@contextmanager
def emulator(scheme, log):
    """A running server of a kind of bucket; gives its URL."""
    [port] = free_ports(1)
    command = PROGRAMS[scheme](port)
    clean = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "VIRTUAL_ENV"}}
    with log.open("w") as stream:
        process = subprocess.Popen(command, stdout=stream, stderr=subprocess.STDOUT, env=clean)
    try:
        url = f"http://127.0.0.1:{port}"

        def answers():
            assert process.poll() is None, log.read_text()
            try:
                return httpx.get(url, trust_env=False).status_code
            except httpx.TransportError:
                return None

        assert eventually(answers, 60), log.read_text()
        yield url
    finally:
        process.kill()
        process.wait()


class Site:
    """A folder given by HTTP, and what was asked; `answers` has what is answered otherwise, by path."""

    def __init__(self, root, certificate=None):
        site = self
        self.root, self.asked, self.answers = root, [], {}

        class Handler(http.server.SimpleHTTPRequestHandler):
            def __init__(self, *arguments):
                super().__init__(*arguments, directory=str(site.root))

            def do_GET(self):
                site.asked.append(self.path)
                if self.path in site.answers:
                    site.answers[self.path](self)
                else:
                    super().do_GET()

            def log_message(self, *_):
                pass

        self._serving = serving(Handler, certificate)

    def __enter__(self):
        self.url = self._serving.__enter__()
        return self

    def __exit__(self, *ended):
        self._serving.__exit__(*ended)


@contextmanager
def serving(handler, certificate=None):
    """A server in threads of this process; gives its URL."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    try:
        yield f"{'http' if certificate is None else 'https'}://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


class Hub(http.server.BaseHTTPRequestHandler):
    """What a driver asks of Hugging Face about the model repository `owner/bucket`: it exists, its tree, and files."""

    files: dict = {}  # noqa: RUF012

    def do_PUT(self):
        content = self.rfile.read(int(self.headers["Content-Length"]))
        self.files[self.path.removeprefix("/owner/bucket/")] = content
        self._send(201, b"")

    def do_GET(self):
        match unquote(urlsplit(self.path).path).strip("/").split("/"):
            case ["api", "models", "owner", "bucket"] | ["api", "models", "owner", "bucket", "revision", "main"]:
                self._send(200, json.dumps({"id": "owner/bucket", "siblings": []}).encode())
            case ["api", "models", "owner", "bucket", "tree", "main", *folder]:
                below = "".join(f"{part}/" for part in folder)
                tree = [self._entry(*file) for file in sorted(self.files.items()) if file[0].startswith(below)]
                if tree:
                    self._send(200, json.dumps(tree).encode())
                else:
                    self._send(404, b'{"error": "not there"}', **{"X-Error-Code": "EntryNotFound"})
            case ["owner", "bucket", "resolve", "main", *file] if (
                content := self.files.get("/".join(file))
            ) is not None:
                first, last = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
                self._send(206, content[first : last + 1])
            case ["api", "models", "owner", "bucket", "revision", _]:
                self._send(404, b"{}", **{"X-Error-Code": "RevisionNotFound"})
            case ["api", "models", *_]:
                self._send(401, b"{}", **{"X-Error-Message": "Invalid username or password."})
            case _:
                self._send(404, b"{}")

    def _entry(self, path, content):
        return {"type": "file", "path": path, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}

    def _send(self, status, content, **headers):
        self.send_response(status)
        for name, value in {"Content-Length": len(content), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        pass
