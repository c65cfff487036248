"""HAProxy's configuration: where it listens, its limits, and the errors that it answers itself."""

import json
import resource
import string
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from deployments.contract.errors import EnsembleError, HeadersTooLarge, MisdirectedRequest, NotReady, SlowBody
from deployments.contract.names import COMPRESSED
from deployments.cpus import available_cpus
from deployments.ingress.error_style import AS_OBJECT, ErrorStyle
from deployments.ingress.listeners.slot import CHECKED, LEAVING, NOTICE_S, SERVER, SLOTS, path
from deployments.ingress.protocol import Protocol, resolve

TEMPLATE = Path(__file__).with_name("haproxy.cfg")
CERTIFICATE = "certificate.pem"
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
# Of a request; HAProxy reads twice as many bytes, so that it can answer a request that has more.
MOST_HEADERS, HEADER_BYTES = 100, 65_536
LARGE = f"the headers have more than {HEADER_BYTES} bytes, or there are more than {MOST_HEADERS}; send fewer"
OTHER_VERSION = "this port speaks HTTP/1.1; send that, or gRPC to port {}"
BUSY = "too many messages of this size are on their way; try again later"
TLS = " ssl crt {} alpn {} ssl-min-ver TLSv1.2 no-tls-tickets"


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
        large_headers=LARGE,
        other_version=OTHER_VERSION.format(listening.grpc),
        header_bytes=HEADER_BYTES,
        most_headers=MOST_HEADERS,
        buffer_bytes=2 * HEADER_BYTES,
        busy=BUSY,
        compressed=COMPRESSED,
        **_rules(resolve(listening.protocols), listening.grpc),
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


def _rules(protocols: Sequence[type[Protocol]], grpc_port: int) -> dict[str, str]:
    """Make the rules of protocols: the forms of errors, and gRPC methods with limits of their own."""
    answers = {
        "down": NotReady(DOWN),
        "late": SlowBody(SLOW),
        "large": HeadersTooLarge(LARGE),
        "version": MisdirectedRequest(OTHER_VERSION.format(grpc_port)),
    }
    # A longer beginning is set later, and stays.
    below = {each.prefix: each.style for each in protocols if each.prefix}
    styles = [("", AS_OBJECT), *((prefix, below[prefix]) for prefix in sorted(below))]
    errors = [
        f"    http-request set-var-fmt(txn.{name}) '{_quoted(style, error)}'{prefix and f' if {{ path_beg {prefix} }}'}"
        for prefix, style in styles
        for name, error in answers.items()
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
