"""What our launcher changes in the configuration that Serve writes for HAProxy: it has no switches for these things.

Standard library only: the launcher runs at each of HAProxy's reloads.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

# Whoever reads the file can see what was done to it, and by whom.
MARK = "# Edited by ensemble-serving's launcher"
# To receive a request's headers, and then this much of its body or all of it. The rest may take longer: the ingress
# bounds it, and would spend more on each slow body than HAProxy does. HAProxy's buffer, of 16 KB, must hold both.
HEADERS_S, BEGINNING_S, BEGINNING_BYTES = 5, 10, 8192
RETRY_AFTER_S = 1
CODE, MESSAGE = "not_ready", "the application is not there; try again later"
SLOW = "slow_body", f"of the body less than {BEGINNING_BYTES} bytes came in {BEGINNING_S} s; send it faster"
PROTOCOL = "/v2"
# HAProxy's own words for what fails behind it; to a client all are one: not there.
FAILURES = (500, 502, 503, 504)
# What Serve's own proxy answers, in plain text, while no replica takes requests.
OF_THE_FALLBACK = "{ srv_name -m beg SERVE_PROXY_ACTOR } { res.hdr(content-type) -m beg text/plain }"
# Of the application as the shipped configurations name it.
BACKEND = "http-ensemble"
GRPC_BACKEND = "grpc-ensemble"
# Streams of clients, and the messages on their way at a time that declare more than so many bytes, first the largest: a
# message is in memory from its first byte on. With at most 34 MiB each, Serve's limit, that is 1.3 GiB in all.
MOST_STREAMS, MOST_OF_SIZE = 1024, {4 * 1024 * 1024: 16, 256 * 1024: 128}
# The deadline of a call without one, or with a later one; loading takes longer. Until then its message must have come.
GRPC_DEADLINE, LOADING, LOADING_DEADLINE = "100S", "/inference.GRPCInferenceService/RepositoryModel", "10M"
SOON = "^([0-9]{1,8}[nu]|[0-9]{1,5}m|[0-9]{1,2}S|1M)$"
# Serve's, which is a stream that the client doesn't end before it is answered.
REFLECTION = "/grpc.reflection."
BUSY = "overloaded", "too many messages of this size are on their way; try again later"
# Serve takes in the whole of a body, however large, to notice that its client leaves, unless it is told not to watch:
# the ingress does so itself, for less.
UNWATCHED = "x-request-disconnect-disabled"
# Serve would end a request after that time, in its own words; the ingress has deadlines.
OF_SERVE = "x-request-timeout-seconds"
# Over HTTP/2 a refusal is lost where the ingress ends the connection while the rest of a body is on its way.
ONE_AT_A_TIME = "option disable-h2-upgrade"
FORWARDED = "http-request set-header x-forwarded-for %[src]"
CIPHERS = "ssl-min-ver TLSv1.2 no-tls-tickets"


class Unrecognized(ValueError):
    """The configuration is not as the version of Serve that this was written for writes it."""


@dataclass(frozen=True)
class Tls:
    """What TLS ends with.

    Attributes:
        file: a certificate with its chain, PEM; the key is in the file of that name and `.key`.
    """

    file: Path


def edited(text: str, tls: Tls | None = None, watched: bool = False) -> str:
    """The configuration, changed.

    Args:
        text: as Serve wrote it.
        tls: what TLS ends with, if it is asked for.
        watched: Serve looks whether clients leave, as it must where the ingress has an event loop of its own.

    Raises:
        Unrecognized: it is not as expected.
    """
    told = f"content-type application/json lf-string '%[var(txn.down)]' hdr Retry-After {RETRY_AFTER_S}"
    text = _replaced(text, r"(    stats socket \S+) mode 666 ", r"\1 mode 600 ")
    text = _replaced(text, r"defaults\n    mode http\n", rf"\g<0>    timeout http-request {HEADERS_S}s\n")
    errors = "".join(f"    http-error status {status} {told}\n" for status in FAILURES)
    errors += "    http-error status 408 content-type application/json lf-string '%[var(txn.slow)]'\n"
    text = _replaced(text, r"(?:    errorfile 50[234] \S+\n){3}", lambda _: errors)
    text = _replaced(text, r"(frontend prometheus\n    bind) :", r"\1 127.0.0.1:")
    text = _replaced(text, r"(listen stats\n  bind) \*:", r"\1 127.0.0.1:")
    rules = [
        *_told("down", CODE, MESSAGE),
        *_told("slow", *SLOW),
        # A server may leave an upgrade alone, and ours speaks no WebSocket.
        "http-request del-header upgrade",
        # Read from another thread, a connection may hang: no client may ask for that.
        *([f"http-request del-header {UNWATCHED}"] if watched else []),
        FORWARDED,
        f"http-response return status 503 {told} if {{ status 404 500 503 }} {OF_THE_FALLBACK}",
        "http-after-response set-status 503 if { status 500 502 504 } { res.hdr(retry-after) -m found }",
    ]
    text = _replaced(
        text,
        r"(frontend http_frontend\n    bind \S+)\n",
        rf"\1{_tls(tls, 'http/1.1')}\n" + _escaped("".join(f"    {rule}\n" for rule in [ONE_AT_A_TIME, *rules])),
    )
    # Behind what tells Serve's metrics the application and the route.
    wait = f"    http-request wait-for-body time {BEGINNING_S}s at-least {BEGINNING_BYTES}\n"
    text = _replaced(text, r"    # Static routing based on path prefixes", lambda found: f"{wait}{found[0]}")
    if "\nfrontend grpc_frontend\n" in text:
        pattern = r"(frontend grpc_frontend\n(?:    #.*\n)*    bind \S+ proto h2)\n"
        text = _replaced(text, pattern, rf"\1{_tls(tls, 'h2')}\n    {_escaped(FORWARDED)}\n")
    return f"{MARK}\n{_without_applications(_of_our_grpc(_of_ours(text, watched)), told)}"


def _of_ours(text: str, watched: bool) -> str:
    """What holds for our application alone; others behind the same HAProxy are left to Serve."""
    if f"\nbackend {BACKEND}\n" not in text:
        return text
    block = text.partition(f"\nbackend {BACKEND}\n")[2].partition("\nbackend ")[0]
    replicas = re.findall(r"^    server (\S+) (?!.*\bbackup\b)", block, flags=re.MULTILINE)
    rules = [f"http-request del-header {name}" for name in (OF_SERVE, UNWATCHED)]
    if replicas and not watched:
        # Serve's own proxy, which keeps requests until there is a replica, must notice who leaves.
        is_up = " || ".join(f"{{ srv_is_up({BACKEND}/{name}) }}" for name in replicas)
        rules.append(f"http-request set-header {UNWATCHED} ?1 if {is_up}")
    return _replaced(text, rf"backend {BACKEND}\n", r"\g<0>" + "".join(f"    {rule}\n" for rule in rules))


def _of_our_grpc(text: str) -> str:
    """What bounds messages on their way to our application; Serve's gRPC server bounds only the size of each."""
    if f"\nbackend {GRPC_BACKEND}\n" not in text:
        return text
    busy = f"http-request return status 200 content-type application/grpc {_status(8, *BUSY)}"
    rules = [
        f"http-error status 408 content-type application/grpc {_status(4, *SLOW)} string ' '",
        "http-after-response set-status 200 if { status 408 }",
        f"http-request wait-for-body time {BEGINNING_S}s at-least {BEGINNING_BYTES} unless {{ path_beg {REFLECTION} }}",
        # A message begins with a byte that says whether it is compressed, and four that say its length.
        "http-request set-var(txn.bytes) req.body,bytes(1,4),hex,hex2i",
        f"http-request set-var(txn.bytes) int({2**31}) unless {{ req.body,bytes(0,1),hex,hex2i eq 0 }}",
        f"{busy} if {{ be_conn gt {MOST_STREAMS} }}",
    ]
    tables, others = "", ""
    for size, most in MOST_OF_SIZE.items():
        table, has_size = f"grpc-{size}", f"{{ var(txn.bytes) -m int gt {size} }}{others}"
        tables += f"backend {table}\n    stick-table type integer size 1 store gpc0\n"
        rules.append(f"http-request track-sc1 int(1) table {table} if {has_size}")
        rules.append(f"{busy} if {has_size} {{ sc1_trackers({table}) gt {most} }}")
        others = f" !{{ var(txn.bytes) -m int gt {size} }}"
    deadline = "http-request set-header grpc-timeout"
    rules.append(f"{deadline} {LOADING_DEADLINE} if {{ path_beg {LOADING} }}")
    rules.append(f"{deadline} {GRPC_DEADLINE} if !{{ path_beg {LOADING} }} !{{ req.hdr(grpc-timeout) -m reg {SOON} }}")
    lines = _escaped("".join(f"    {rule}\n" for rule in rules))
    return _replaced(text, rf"backend {GRPC_BACKEND}\n    mode http\n", rf"{tables}\g<0>{lines}")


def _status(number: int, code: str, message: str) -> str:
    return f'hdr grpc-status {number} hdr grpc-message "{code}: {message}"'


def _told(variable: str, code: str, message: str) -> list[str]:
    """Rules that keep an error's JSON, in the words of the protocol that is asked."""
    body = json.dumps({"error": {"code": code, "message": message}}, separators=(",", ":"))
    body_of_protocol = json.dumps({"error": f"{code}: {message}"}, separators=(",", ":"))
    return [
        f"http-request set-var-fmt(txn.{variable}) '{body}'",
        f"http-request set-var-fmt(txn.{variable}) '{body_of_protocol}' if {{ path_beg {PROTOCOL} }}",
    ]


def _without_applications(text: str, told: str) -> str:
    """Before there is an application Serve answers that there is none, which a client takes for good."""
    if "\n    use_backend http-" not in text:
        pattern = r"(backend default_backend\n)    http-request return status 404 .*\n"
        text = _replaced(text, pattern, lambda found: f"{found[1]}    http-request return status 503 {told}\n")
    if "\nbackend default_grpc_backend\n" in text and "\n    use_backend grpc-" not in text:
        start = r"(backend default_grpc_backend\n(?:    .*\n)*?)"
        rest = r"    http-request return status 200 content-type application/grpc hdr grpc-status 5 "
        unavailable = rest.replace("grpc-status 5", "grpc-status 14") + f'hdr grpc-message "{CODE}: {MESSAGE}"\n'
        text = _replaced(text, rf"{start}(?:{rest}.*\n){{2}}", lambda found: found[1] + unavailable)
    return text


def _tls(tls: Tls | None, protocols: str) -> str:
    return "" if tls is None else _escaped(f" ssl crt {tls.file} alpn {protocols} {CIPHERS}")


def _replaced(text: str, pattern: str, replacement: object) -> str:
    changed, count = re.subn(f"^{pattern}", replacement, text, flags=re.MULTILINE)  # type: ignore[call-overload]
    if count != 1:
        raise Unrecognized(f"{pattern!r} is there {count} times, not once")
    return str(changed)


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\")
