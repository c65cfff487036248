"""Places to fetch models from: a S3 and a GCS of others', in an environment of their own, and a website."""

import http.server
import os
import ssl
import subprocess
import threading
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.environments import environment
from tests.server.server import eventually, free_ports

LOCK = Path(__file__).with_name("requirements-buckets.lock")
PROGRAMS = {
    "s3": lambda port: ["moto_server", "-H", "127.0.0.1", "-p", str(port)],
    "gs": lambda port: ["gcp-storage-emulator", "start", "--in-memory", "--host", "127.0.0.1", "--port", str(port)],
}


@contextmanager
def emulator(scheme, log):
    """A running server of a kind of bucket; gives its URL."""
    [port] = free_ports(1)
    program, *arguments = PROGRAMS[scheme](port)
    command = [environment("buckets", LOCK).with_name(program), *arguments]
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

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.url = f"{'http' if certificate is None else 'https'}://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self):
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()
