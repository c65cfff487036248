"""The clock of deadlines and durations: seconds since the epoch that go on evenly while the system's clock jumps.

All processes that a server starts on its machine have one clock: the server sets it by an environment variable.
"""

import os
import time

# How far the monotonic clock was behind the system's clock when the server started, nanoseconds.
SETTING = "ENSEMBLE_CLOCK_NS"
BEHIND_NS = int(os.environ.get(SETTING) or time.time_ns() - time.monotonic_ns())


def now_ns() -> int:
    """Return the time, nanoseconds."""
    return time.monotonic_ns() + BEHIND_NS


def now() -> float:
    """Return the time, seconds."""
    return now_ns() / 1e9


def by_system_ns(moment_ns: int) -> int:
    """Return a time of this clock by the system's clock of now, for what others read, nanoseconds.

    Two times stay as far apart as they are: the difference of the clocks counts in whole seconds.
    """
    return moment_ns + round((time.time_ns() - now_ns()) / 1e9) * 10**9


def start() -> None:
    """Start the clock of the processes that this one starts."""
    os.environ[SETTING] = str(time.time_ns() - time.monotonic_ns())
