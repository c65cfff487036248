"""A process of the load generator: sends requests, and reports what became of them to the process that started it."""

import asyncio
import ctypes
import gc
import os
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection

import uvloop

from ensemble_capacity.load.load import Arrivals, Closed, Mode, Target
from ensemble_capacity.load.records import FAILED, LATE, LAYOUT, LOST
from ensemble_serving.transports import NoResponse, Request, Response, ResponseTimeout

# Between two reports.
REPORT_S = 0.2
PACK = struct.Struct(LAYOUT).pack
# An open loop ends by itself when so many requests wait for the server: more would only take memory.
MOST_UNDER_WAY = 20_000
# Linux's numbers: <time.h>, <sys/timerfd.h>. From Python 3.13 on, the module `os` has these calls.
CLOCK_MONOTONIC, TFD_TIMER_ABSTIME = 1, 1
_libc = ctypes.CDLL(None, use_errno=True)


Turns = Iterator[tuple[Request, str]]


@dataclass(frozen=True)
class Report:
    """What a worker reports.

    Attributes:
        records: what became of requests since the last report, of `records.DTYPE`.
        cpu_s: CPU time of the process since the load began, seconds.
        first_error: what the first failed request got.
        ended: whether nothing more is sent: it was stopped, no request is left, or too many wait for the server.
    """

    records: bytes
    cpu_s: float
    first_error: str
    ended: bool


class Alarm:
    """A timer of the kernel's, at an absolute time of `time.perf_counter`; asyncio's are rounded to milliseconds."""

    def __init__(self, ring: Callable[[], None]) -> None:
        """Set the function that it calls when it rings, in the running loop."""
        self._fd = _libc.timerfd_create(CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._ring = ring
        asyncio.get_running_loop().add_reader(self._fd, self._rang)

    def set(self, at: float) -> None:
        """Set the timer to ring once at a time, seconds; it rings at once if the time is over."""
        seconds, nanoseconds = divmod(max(1, round(at * 1e9)), 1_000_000_000)
        # The interval, which is none, and the time.
        when = struct.pack("@qqqq", 0, 0, seconds, nanoseconds)
        if _libc.timerfd_settime(self._fd, TFD_TIMER_ABSTIME, when, None) < 0:
            raise OSError(ctypes.get_errno(), "timerfd_settime")

    def _rang(self) -> None:
        os.read(self._fd, 8)
        self._ring()

    def close(self) -> None:
        """Remove the timer."""
        asyncio.get_running_loop().remove_reader(self._fd)
        os.close(self._fd)


def main() -> None:
    """Run as a process: take the load, report that all is prepared, send from the time that comes until more comes."""
    pipe = Connection(int(sys.argv[1]))
    # It takes half of the CPU that asyncio's own loop takes.
    uvloop.run(Worker(pipe, *pipe.recv()).run())


class Worker:
    """Sends requests and notes what becomes of each, until it is stopped."""

    def __init__(self, pipe: Connection, target: Target, mode: Mode) -> None:
        self._target, self._mode, self._pipe = target, mode, pipe
        self._records = bytearray()
        self._first_error = ""
        self.stopped, self.under_way = False, 0

    async def run(self) -> None:
        """Send and report, from begin to end."""
        # Made before the first one is due.
        mode, turns, loop = self._mode, self._target.turns(), asyncio.get_running_loop()
        self._transport = self._target.connect(mode.concurrency if isinstance(mode, Closed) else None)
        self._over = asyncio.Event()
        # A collection of garbage would be a pause in which nothing is sent, and no circles are made here.
        gc.collect()
        gc.freeze()
        gc.disable()
        self._pipe.send(None)
        begin: float = await asyncio.to_thread(self._pipe.recv)
        # Not by `add_reader`, which would make the pipe non-blocking for what is sent, too.
        threading.Thread(target=self._await_stop, args=(loop,), daemon=True).start()
        self._cpu_before = time.process_time()
        tasks = [loop.create_task(self._report_regularly())]
        if isinstance(mode, Closed):
            tasks += [loop.create_task(client(self, mode, turns, begin)) for _ in range(mode.concurrency)]
        else:
            open_loop(self, mode, turns, begin)
        await self._over.wait()
        for task in tasks:
            task.cancel()
        await self._transport.close()
        # The command may have been ended meanwhile.
        with suppress(OSError):
            self._report(ended=True)

    def _await_stop(self, loop: asyncio.AbstractEventLoop) -> None:
        with suppress(EOFError, OSError):
            self._pipe.recv()
        # It may be over already.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(self.stop)

    def stop(self) -> None:
        """Send no more; it is over when every response is there."""
        self.stopped = True
        if not self.under_way:
            self._over.set()

    async def _report_regularly(self) -> None:
        while True:
            await asyncio.sleep(REPORT_S)
            self._report(ended=False)

    def _report(self, ended: bool) -> None:
        cpu_s = time.process_time() - self._cpu_before
        self._pipe.send(Report(bytes(self._records), cpu_s, self._first_error, ended))
        self._records.clear()

    def send(self, request: Request, label: str, due: float) -> asyncio.Future[Response]:
        """Send a request that was due at a time, and note what becomes of it."""
        began = time.perf_counter()

        def done(future: asyncio.Future[Response]) -> None:
            self.under_way -= 1
            self._note(future, label, due, began)
            if self.stopped:
                self.stop()

        self.under_way += 1
        future = self._transport.send(request)
        future.add_done_callback(done)
        return future

    def _note(self, future: asyncio.Future[Response], label: str, due: float, began: float) -> None:
        batch, error, flags = self._target.batch, future.exception(), 0
        if error is not None:
            if not isinstance(error, NoResponse):
                raise RuntimeError("a transport failed") from error
            self._first_error = self._first_error or str(error)
            status = LATE if isinstance(error, ResponseTimeout) else LOST
            self._records += PACK(due, began, time.perf_counter(), status, flags, batch)
            return
        response = future.result()
        if response.ok:
            flags = self._target.protocol.seen(response.body, label)
        if not response.ok or flags & FAILED:
            self._first_error = self._first_error or f"{response.status} {response.body[:300].decode(errors='replace')}"
        self._records += PACK(due, response.sent, response.at, response.status, flags, batch)


def open_loop(sender: Worker, arrivals: Arrivals, turns: Turns, begin: float) -> None:
    """Send each request when it is due, whatever becomes of the others; the first is due at `begin`."""
    offsets = arrivals.offsets()
    following = next(offsets, None)

    def send_due() -> None:
        nonlocal following
        while following is not None and not sender.stopped and sender.under_way < MOST_UNDER_WAY:
            due = begin + following
            if due > time.perf_counter():
                alarm.set(due)
                return
            sender.send(*next(turns), due)
            following = next(offsets, None)
        alarm.close()
        sender.stop()

    alarm = Alarm(send_due)
    alarm.set(begin)


async def client(sender: Worker, mode: Closed, turns: Turns, begin: float) -> None:
    """Send one request after the other, each when the response to the last is there, until the sender is stopped."""
    await asyncio.sleep(begin - time.perf_counter())
    request, label = next(turns)
    while not sender.stopped:
        try:
            response = await sender.send(request, label, time.perf_counter())
        except NoResponse:
            response = None
        if (response is not None and response.ok) or not await mode.rest(response):
            request, label = next(turns)
