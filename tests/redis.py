"""A real Redis for tests, on a Unix socket of its own."""

import socket
import subprocess
import time


class running:  # noqa: N801
    """Starts a `redis-server` on entry, which gives its URL, and ends it on exit."""

    process = None

    def __init__(self, folder, name="redis"):
        self.path = folder / f"{name}.sock"

    def __enter__(self):
        command = ["redis-server", "--port", "0", "--save", "", "--unixsocket", str(self.path)]
        try:
            self.own = subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=self.path.parent)
        except FileNotFoundError:
            raise AssertionError("these tests need a Redis: apt-get install redis-server") from None
        type(self).process = self.own
        give_up = time.monotonic() + 30
        while True:
            try:
                with socket.socket(socket.AF_UNIX) as client:
                    client.connect(str(self.path))
                return f"unix://{self.path}"
            except OSError:
                assert self.own.poll() is None, "redis-server ended at its start"
                assert time.monotonic() < give_up, "redis-server did not start"
                time.sleep(0.01)

    def __exit__(self, *_):
        self.own.kill()
        self.own.wait()
        self.path.unlink(missing_ok=True)
