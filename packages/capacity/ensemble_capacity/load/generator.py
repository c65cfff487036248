"""The load generator: starts processes that send requests, and collects what became of them while they do."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import Self

from ensemble_capacity.load.load import Mode, Target
from ensemble_capacity.load.records import Records, records
from ensemble_capacity.load.worker import Job, Report
from scripts.errors import ScriptError

# From when every process is ready until the first request.
BEFORE_S = 0.05
START_TIMEOUT_S = 60.0
WORKER = "from ensemble_capacity.load.worker import main; main()"


class Generator:
    """A load from the beginning of a `with` block to its end; what becomes of requests can be read meanwhile.

    It began when the first request may be sent, seconds of `time.perf_counter`.
    """

    def __init__(self, target: Target, mode: Mode, processes: int = 1) -> None:
        """Set the requests, the way to send them, and the number of processes."""
        self._target = target
        self._jobs = [Job(target, mode, part, processes) for part in range(processes)]
        self._lock = threading.Lock()
        self._parts: list[bytes] = []
        self._timings: list[str] = []
        self._cpu: list[tuple[float, float]] = []
        self._latest: dict[Connection, Report] = {}
        self._lost = False

    def __enter__(self) -> Self:
        """Start the processes; raises ScriptError if they don't."""
        self._pipes: list[Connection] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        for job in self._jobs:
            ours, theirs = socket.socketpair()
            # Not by `multiprocessing`, whose processes import all that the command does.
            command = [sys.executable, "-P", "-c", WORKER, str(theirs.fileno())]
            # Away from the terminal, whose Ctrl-C is for this process to heed.
            process = subprocess.Popen(command, pass_fds=[theirs.fileno()], start_new_session=True)  # noqa: S603
            self._processes.append(process)
            theirs.close()
            self._pipes.append(Connection(ours.detach()))
            self._pipes[-1].send(job)
        try:
            for pipe in self._pipes:
                if not pipe.poll(START_TIMEOUT_S):
                    raise ScriptError("a process of the load generator did not start")
                pipe.recv()
            self.began = time.perf_counter() + BEFORE_S
            for pipe in self._pipes:
                pipe.send(self.began)
        except (EOFError, OSError, ScriptError) as err:
            self._kill()
            raise ScriptError(f"a process of the load generator did not start: {err}") from err
        self._reader = threading.Thread(target=self._read, name="load", daemon=True)
        self._reader.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Stop sending, wait for the outstanding responses, end the processes."""
        self.stop()
        # Each request has its time-out.
        self._reader.join(0 if kind else self._target.timeout_s + START_TIMEOUT_S)
        self._kill()
        self._reader.join()
        for pipe in self._pipes:
            pipe.close()

    def stop(self) -> None:
        """Stop sending."""
        for pipe in self._pipes:
            with suppress(OSError):
                pipe.send("stop")

    def _kill(self) -> None:
        for process in self._processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(1)
            process.kill()
            process.wait()

    def _read(self) -> None:
        reading = list(self._pipes)
        while reading:
            for pipe in wait(reading):
                assert isinstance(pipe, Connection)
                try:
                    report: Report = pipe.recv()
                except (EOFError, OSError):
                    self._lost = self._lost or not (pipe in self._latest and self._latest[pipe].ended)
                    reading.remove(pipe)
                    continue
                with self._lock:
                    self._parts.append(report.records)
                    self._timings += report.timings
                    self._latest[pipe] = report
                    self._cpu.append((time.perf_counter(), sum(each.cpu_s for each in self._latest.values())))

    def records(self) -> Records:
        """Return the records of the requests so far, in the order in which they were due."""
        with self._lock:
            return records(self._parts)

    @property
    def ended(self) -> bool:
        """Whether nothing more is sent."""
        with self._lock:
            return self._lost or (len(self._latest) == len(self._jobs) and all(e.ended for e in self._latest.values()))

    @property
    def first_error(self) -> str:
        """What a failed request got; empty if none failed."""
        with self._lock:
            return next((each.first_error for each in self._latest.values() if each.first_error), "")

    @property
    def timings(self) -> list[str]:
        """Some of the responses' `Server-Timing` headers."""
        with self._lock:
            return list(self._timings)

    def cpu_s(self, begin: float, end: float) -> float:
        """Return the processes' CPU time between two times, seconds, by the reports nearest to them."""
        with self._lock:
            if not self._cpu:
                return 0.0
            first = min(self._cpu, key=lambda each: abs(each[0] - begin))
            last = min(self._cpu, key=lambda each: abs(each[0] - end))
        return (last[1] - first[1]) * (end - begin) / max(last[0] - first[0], 1e-9)

    def run(self, seconds: float, tick: Callable[[], object] = lambda: None) -> None:
        """Wait until `seconds` after the begin, or until nothing more is sent."""
        while (left := self.began + seconds - time.perf_counter()) > 0 and not self.ended:
            time.sleep(min(left, 0.1))
            tick()
