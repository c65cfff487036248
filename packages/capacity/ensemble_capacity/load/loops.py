"""Which request is sent when: the closed loop and the open loop."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ensemble_capacity.load.alarm import Alarm
from ensemble_capacity.load.arrivals import Arrivals
from ensemble_capacity.load.load import Closed
from ensemble_capacity.load.records import RETRY
from ensemble_serving.transports import Request, Response

if TYPE_CHECKING:
    from ensemble_capacity.load.worker import Worker

Turns = Iterator[tuple[Request, str]]
# An open loop ends by itself when so many requests wait for the server: more would only take memory.
MOST_UNDER_WAY = 20_000
# Without a pause, a client that finds no server would try thousands of times per second.
PAUSE_S = 0.1


def open_loop(sender: Worker, arrivals: Arrivals, turns: Turns, begin: float, part: slice) -> None:
    """Send each request when it is due, whatever becomes of the others.

    The first is due at `begin`, seconds of `time.perf_counter`; `part` says which of the arrivals are sent here.
    """
    offsets = itertools.islice(arrivals.offsets(), part.start, part.stop, part.step)
    following = next(offsets, None)

    def send_due() -> None:
        nonlocal following
        while following is not None and not sender.stopped and sender.under_way < MOST_UNDER_WAY:
            due = begin + following
            if due > time.perf_counter():
                alarm.set(due)
                return
            sender.send(*next(turns), due, lambda _: None)
            following = next(offsets, None)
        alarm.close()
        sender.stop()

    alarm = Alarm(send_due)
    alarm.set(begin)


def closed_loop(sender: Worker, mode: Closed, turns: Turns, begin: float, clients: int) -> None:
    """Let so many clients begin, each of which sends its next request when it has the response to its last."""
    loop = asyncio.get_running_loop()
    for _ in range(clients):
        # asyncio's clock and ours are the same one.
        loop.call_at(begin, _Client(sender, mode, turns).send_next)
    if not clients:
        sender.stop()


class _Client:
    """A client of a closed loop; it ends when the sender is stopped."""

    def __init__(self, sender: Worker, mode: Closed, turns: Turns) -> None:
        self._sender, self._mode, self._turns = sender, mode, turns
        self._refusals = 0

    def send_next(self) -> None:
        """Send the next request."""
        self._request, self._label = next(self._turns)
        self._send()

    def _send(self) -> None:
        if not self._sender.stopped:
            flags = RETRY if self._refusals == 1 else 0
            self._sender.send(self._request, self._label, time.perf_counter(), self._done, flags)

    def _done(self, response: Response | None) -> None:
        if response is not None and response.ok:
            self._refusals = 0
            self.send_next()
            return
        wait_s = None if response is None else response.retry_after_s
        self._refusals = 0 if wait_s is None else self._refusals + 1
        later, loop = self.send_next, asyncio.get_running_loop()
        if self._mode.obey and wait_s is not None:
            later = self._send
        else:
            wait_s = max(self._mode.pause_s, PAUSE_S if response is None else 0.0)
        if wait_s:
            loop.call_later(wait_s, later)
        else:
            # Not at once: of a transport that fails at once this would never return.
            loop.call_soon(later)
