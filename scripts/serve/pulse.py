"""Whether the process that listens on a Unix socket stands still, as one does that was sent SIGSTOP."""

import os
import socket
import struct
from pathlib import Path

import psutil

from deployments.cpus import cpu_ns

# A process stands still if it has answered none of so many questions, each within this time, and used no CPU time.
QUESTIONS, ANSWER_S = 3, 0.15
# Unless it is stopped, it may wait for a disk, and has so many questions more: 3 s.
MORE_QUESTIONS = 20
CREDENTIALS = struct.Struct("iII")


class Pulse:
    """Sees whether a process stands still. One that uses CPU time does not, and is not asked."""

    def __init__(self, path: Path, question: bytes) -> None:
        """Set the process's socket, and bytes that it answers at once."""
        self._path, self._question = path, question
        self._pid = self._used = 0

    def find_still(self) -> int | None:
        """Return the id of the process if it stands still; None if it does not, or nobody listens."""
        if not all(self._is_silent() for _ in range(QUESTIONS)):
            return None
        is_still = self._is_stopped() or all(self._is_silent() for _ in range(MORE_QUESTIONS))
        return self._pid if is_still else None

    def _is_stopped(self) -> bool:
        try:
            return psutil.Process(self._pid).status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
        except psutil.Error:
            return False

    def _is_silent(self) -> bool:
        """Tell whether the process has used no CPU time since the last look and does not answer."""
        try:
            before, self._used = self._used, cpu_ns(self._pid) if self._pid else 0
            if before != self._used:
                return False
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(ANSWER_S)
                connection.connect(os.fspath(self._path))
                credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
                self._pid, _, _ = CREDENTIALS.unpack(credentials)
                connection.sendall(self._question)
                connection.recv(1)
        except (TimeoutError, BlockingIOError):
            # A full queue of connections is one that is not emptied.
            return bool(self._pid)
        except OSError:
            self._pid = 0
        return False
