"""Wakes an event loop at exact times: asyncio's own timers are rounded up to whole milliseconds."""

from __future__ import annotations

import asyncio
import ctypes
import os
import struct
from collections.abc import Callable

# Linux's numbers: <time.h>, <sys/timerfd.h>. From Python 3.13 on, the module `os` has these calls.
CLOCK_MONOTONIC, TFD_TIMER_ABSTIME = 1, 1
FLAGS = os.O_NONBLOCK | os.O_CLOEXEC
_libc = ctypes.CDLL(None, use_errno=True)


class Alarm:
    """A timer of the kernel's, at an absolute time of `time.perf_counter`."""

    def __init__(self, ring: Callable[[], None]) -> None:
        """Set what is called when it rings, in the running loop."""
        self._fd = _libc.timerfd_create(CLOCK_MONOTONIC, FLAGS)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._ring = ring
        asyncio.get_running_loop().add_reader(self._fd, self._rang)

    def set(self, at: float) -> None:
        """Ring once at a time, seconds; at once if it is over."""
        seconds, nanoseconds = divmod(max(1, round(at * 1e9)), 1_000_000_000)
        # The interval, which is none, and the time.
        when = struct.pack("@qqqq", 0, 0, seconds, nanoseconds)
        if _libc.timerfd_settime(self._fd, TFD_TIMER_ABSTIME, when, None) < 0:
            raise OSError(ctypes.get_errno(), "timerfd_settime")

    def _rang(self) -> None:
        os.read(self._fd, 8)
        self._ring()

    def close(self) -> None:
        """Never ring again."""
        asyncio.get_running_loop().remove_reader(self._fd)
        os.close(self._fd)
