"""A process of the load generator: sends requests, and reports what became of them to the process that started it."""

from __future__ import annotations

import asyncio
import gc
import struct
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection

import uvloop

from ensemble_capacity.load.load import Closed, Mode, Target
from ensemble_capacity.load.loops import closed_loop, open_loop
from ensemble_capacity.load.records import FAILED, LATE, LAYOUT, LOST
from ensemble_serving.transports import NoResponse, Request, Response, ResponseTimeout

# Between two reports.
REPORT_S = 0.2
# Of so many responses the `Server-Timing` of one is kept.
TIMED = 32
PACK = struct.Struct(LAYOUT).pack


@dataclass(frozen=True)
class Job:
    """One process' part of a load."""

    target: Target
    mode: Mode
    part: int
    parts: int


@dataclass(frozen=True)
class Report:
    """What a worker reports.

    Attributes:
        records: what became of requests since the last report, of `records.DTYPE`.
        cpu_s: CPU time of the process so far, seconds.
        under_way: requests without a response now.
        first_error: what the first failed request got.
        timings: some `Server-Timing` headers since the last report.
        ended: whether nothing more is sent: it was stopped, no request is left, or too many wait for the server.
    """

    records: bytes
    cpu_s: float
    under_way: int
    first_error: str
    timings: tuple[str, ...]
    ended: bool


def main() -> None:
    """Run as a process: take the job, report that all is prepared, send from the time that comes until more comes."""
    pipe = Connection(int(sys.argv[1]))
    # It takes half of the CPU that asyncio's own loop takes.
    uvloop.run(Worker(pipe.recv(), pipe).run())


class Worker:
    """Sends requests and notes what becomes of each, until it is stopped."""

    def __init__(self, job: Job, pipe: Connection) -> None:
        self._job, self._pipe = job, pipe
        self._records = bytearray()
        self._timings: list[str] = []
        self._first_error = ""
        self._count = 0
        self.stopped, self.under_way = False, 0

    async def run(self) -> None:
        """Send and report, from begin to end."""
        job, loop = self._job, asyncio.get_running_loop()
        turns = job.target.turns(job.part, job.parts)
        self._transport = job.target.connect(job.mode.concurrency if isinstance(job.mode, Closed) else None)
        self._over = asyncio.Event()
        # A collection of garbage would be a pause in which nothing is sent, and no circles are made here.
        gc.collect()
        gc.freeze()
        gc.disable()
        self._pipe.send(None)
        begin: float = await asyncio.to_thread(self._pipe.recv)
        # Not by `add_reader`, which would make the pipe non-blocking for what is sent, too.
        threading.Thread(target=self._await_stop, args=(loop,), daemon=True).start()
        reporting = loop.create_task(self._report_regularly())
        if isinstance(job.mode, Closed):
            closed_loop(self, job.mode, turns, begin, len(range(job.part, job.mode.concurrency, job.parts)))
        else:
            open_loop(self, job.mode, turns, begin, slice(job.part, None, job.parts))
        await self._over.wait()
        reporting.cancel()
        await self._transport.close()
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
        records, cpu_s = bytes(self._records), time.process_time()
        self._pipe.send(Report(records, cpu_s, self.under_way, self._first_error, tuple(self._timings), ended))
        self._records.clear()
        self._timings.clear()

    def send(
        self, request: Request, label: str, due: float, then: Callable[[Response | None], None], flags: int = 0
    ) -> None:
        """Send a request that was due at a time, and call `then` with the response, or None if there was none."""
        self.under_way += 1
        began = time.perf_counter()

        def done(future: asyncio.Future[Response]) -> None:
            self.under_way -= 1
            response = None if future.exception() else future.result()
            self._note(response, future.exception(), label, due, began, flags)
            then(response)
            if self.stopped:
                self.stop()

        self._transport.send(request).add_done_callback(done)

    def _note(
        self, response: Response | None, error: BaseException | None, label: str, due: float, began: float, flags: int
    ) -> None:
        batch = self._job.target.batch
        if response is None:
            if not isinstance(error, NoResponse):
                raise RuntimeError("a transport failed") from error
            self._first_error = self._first_error or str(error)
            status = LATE if isinstance(error, ResponseTimeout) else LOST
            self._records += PACK(due, began, time.perf_counter(), status, flags, batch)
            return
        if response.ok:
            flags |= self._job.target.protocol.seen(response.body, label)
        if not response.ok or flags & FAILED:
            self._first_error = self._first_error or f"{response.status} {response.body[:300].decode(errors='replace')}"
        self._records += PACK(due, response.sent, response.at, response.status, flags, batch)
        self._count += 1
        if self._count % TIMED == 0 and (timing := response.header("server-timing")):
            self._timings.append(timing)
