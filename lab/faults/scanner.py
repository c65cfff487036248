"""A scanner, which asks for unknown paths and gRPC methods, beside clients that should not notice it."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from statistics import median

import grpc
import httpx
import numpy as np

from ensemble_capacity.load.records import ok
from lab.benchmark.systems import GRPC_PORT
from lab.faults.stage import URL, Stage
from scripts.errors import ScriptError

# Requests per second, the seconds of a turn, how many turns each kind has, and the least share of the rate beside known
# names that clients keep beside unknown ones.
RATE, TURN_S, TURNS, LEAST_KEPT = 20, 6.0, 5, 0.95


def scan(unknown: Callable[[int], object], known: Callable[[], object], here: Stage) -> None:
    """Send unknown names, and as many calls that cost least, by turns, and print what the clients keep.

    Raises ScriptError if the clients keep less than `LEAST_KEPT` of their rate beside known names.
    """
    kept = []
    for turn in range(TURNS):
        # The order of the two alternates, because the machine may become slower or faster.
        order = (known, partial(unknown, turn)) if turn % 2 else (partial(unknown, turn), known)
        first, second = (_rate_beside(send, here) for send in order)
        kept.append(second / first if turn % 2 else first / second)
    print(f"beside unknown names the clients keep {', '.join(f'{each:.2f}' for each in kept)} of their rate")
    if median(kept) < LEAST_KEPT:
        raise ScriptError(f"beside unknown names the clients keep {median(kept):.2f} of their rate beside known ones")


def _rate_beside(send: Callable[[], object], here: Stage) -> float:
    """Send for a turn, and return the clients' answers per second meanwhile."""
    began, sent = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - began) < TURN_S:
        send()
        sent += 1
        time.sleep(max(0.0, sent / RATE - elapsed))
    done = here.clients.records()
    ends = done[ok(done)]["done"]
    return int(np.count_nonzero((ends > began) & (ends <= began + TURN_S))) / TURN_S


def _call(path: str) -> None:
    with suppress(grpc.RpcError), grpc.insecure_channel(f"127.0.0.1:{GRPC_PORT}") as channel:
        call: Callable[..., bytes] = channel.unary_unary(path)
        call(b"", timeout=10)


def scan_paths(here: Stage) -> None:
    """Ask for unknown paths."""
    scan(lambda turn: httpx.get(f"{URL}/{turn}/wp-login.php"), lambda: httpx.get(f"{URL}/v2/health/live"), here)


def scan_methods(here: Stage) -> None:
    """Call unknown methods of gRPC."""
    live = "/inference.GRPCInferenceService/ServerLive"
    scan(lambda turn: _call(f"/scanner.Service/Method{turn}"), lambda: _call(live), here)
