"""Clients that mean ill, in a process of their own, so that the clients that are measured do not wait for them."""

from __future__ import annotations

import multiprocessing
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from ensemble_serving.transports import NoResponse, Request, once
from lab.benchmark.systems import HTTP_PORT
from scripts.errors import ScriptError
from scripts.serve.haproxy import BEGINNING_BYTES

ATTACK_S = 20.0
SLOW_BODIES, BRACKET_SENDERS = 600, 4
HEAD = b"POST /classify HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n"


def attack(by: Callable[[], None]) -> None:
    """Let a function of this module attack, until it ends.

    Raises:
        ScriptError: it failed, so that nothing can be told of the attack.
    """
    process = multiprocessing.get_context("spawn").Process(target=by, name="attackers")
    process.start()
    process.join()
    if process.exitcode != 0:
        raise ScriptError(f"the attackers ended with {process.exitcode}, before their attack was over")


def send_slow_bodies(beginning: int = 0) -> None:
    """Send bodies over many connections, at ten bytes per second each; replace a connection that is ended.

    Args:
        beginning: bytes of the body that are sent at once.
    """
    slow: list[socket.socket] = []
    end = time.monotonic() + ATTACK_S
    while time.monotonic() < end:
        for _ in range(SLOW_BODIES - len(slow)):
            # What is refused at once comes again in a second.
            with suppress(ConnectionError):
                slow.append(socket.create_connection(("127.0.0.1", HTTP_PORT)))
                slow[-1].sendall(HEAD + bytes(beginning))
        time.sleep(1)
        slow = [each for each in slow if _trickle(each)]
    for each in slow:
        each.close()


def send_stalled_bodies() -> None:
    """Send slow bodies that begin with as many bytes as let them pass HAProxy."""
    send_slow_bodies(BEGINNING_BYTES + 100)


def _trickle(connection: socket.socket) -> bool:
    """Send ten bytes more; False if the server has ended the connection, or answered."""
    try:
        connection.sendall(b"0123456789")
        connection.recv(1, socket.MSG_DONTWAIT)
    except BlockingIOError:
        return True
    except OSError:
        pass
    connection.close()
    return False


def send_brackets() -> None:
    """Let a few clients send 31 MB of JSON brackets again and again."""
    body = b'{"inputs": [' + b"[]," * 10_400_000 + b"[]]}"
    over = threading.Event()

    def send() -> None:
        while not over.is_set():
            # Refused before it is read, the connection may end while it is still being sent.
            with suppress(NoResponse):
                once(f"http://127.0.0.1:{HTTP_PORT}", Request("/v2/models/ensemble/infer", body), timeout_s=120)

    with ThreadPoolExecutor(BRACKET_SENDERS) as pool:
        senders = [pool.submit(send) for _ in range(BRACKET_SENDERS)]
        time.sleep(ATTACK_S)
        over.set()
    for sender in senders:
        sender.result()
