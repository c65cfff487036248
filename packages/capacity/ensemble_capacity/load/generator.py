"""The load generator: starts a process that sends requests, and collects what became of them while it does."""

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Self

from ensemble_capacity.load.load import Mode, Target
from ensemble_capacity.load.records import Records, records
from ensemble_capacity.load.worker import Report
from scripts.errors import ScriptError

# From when the process is ready until the first request.
BEFORE_S = 0.05
START_TIMEOUT_S = 60.0
WORKER = "from ensemble_capacity.load.worker import main; main()"


class Generator:
    """A load from the beginning of a `with` block to its end; what becomes of requests can be read meanwhile.

    It began when the first request may be sent, seconds of `time.perf_counter`.
    """

    def __init__(self, target: Target, mode: Mode) -> None:
        """Set the requests and the way to send them."""
        self._target, self._mode = target, mode
        # A thread sets the last report, and appends records.
        self._last = Report(b"", 0.0, "", ended=False)
        self._parts: list[bytes] = []

    def __enter__(self) -> Self:
        """Start the process; raises ScriptError if it doesn't start."""
        ours, theirs = socket.socketpair()
        # Not by `multiprocessing`, whose processes import all that the command does.
        command = [sys.executable, "-P", "-c", WORKER, str(theirs.fileno())]
        # Away from the terminal, whose Ctrl-C is for this process to heed.
        self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], start_new_session=True)  # noqa: S603
        theirs.close()
        self._pipe = Connection(ours.detach())
        try:
            self._pipe.send((self._target, self._mode))
            if not self._pipe.poll(START_TIMEOUT_S):
                raise OSError("nothing came in time")
            self._pipe.recv()
            self.began = time.perf_counter() + BEFORE_S
            self._pipe.send(self.began)
        except (EOFError, OSError) as err:
            self._kill()
            raise ScriptError(f"the load generator did not start: {err}") from err
        self._reader = threading.Thread(target=self._read, name="load", daemon=True)
        self._reader.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Stop sending, wait for the outstanding responses, end the process."""
        with suppress(OSError):
            self._pipe.send("stop")
        # Each request has its time-out.
        self._reader.join(0 if kind else self._target.timeout_s + START_TIMEOUT_S)
        self._kill()
        self._reader.join()
        self._pipe.close()

    def _kill(self) -> None:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(1)
        self._process.kill()
        self._process.wait()

    def _read(self) -> None:
        with suppress(EOFError, OSError):
            while True:
                report: Report = self._pipe.recv()
                self._parts.append(report.records)
                self._last = report
        # The process may have been killed.
        self._last = replace(self._last, ended=True)

    def records(self) -> Records:
        """Return the records of the requests so far, in the order in which they were due."""
        return records(self._parts)

    @property
    def ended(self) -> bool:
        """Whether nothing more is sent."""
        return self._last.ended

    @property
    def first_error(self) -> str:
        """What a failed request got; empty if none failed."""
        return self._last.first_error

    @property
    def cpu_s(self) -> float:
        """The process' CPU time since the load began, seconds."""
        return self._last.cpu_s

    def run(self, seconds: float, tick: Callable[[], object] = lambda: None) -> None:
        """Wait until `seconds` after the begin, or until nothing more is sent."""
        while (left := self.began + seconds - time.perf_counter()) > 0 and not self.ended:
            time.sleep(min(left, 0.1))
            tick()
