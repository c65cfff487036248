"""A server that a command starts for itself: until it is ready, and to the end of all its processes."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from scripts.errors import ScriptError

STOP_TIMEOUT_S, LOOK_EVERY_S = 60.0, 0.2


def says_ready(log: Path) -> bool:
    """Tell whether `ensemble serve` has printed that every member answered."""
    return b"Ready." in log.read_bytes()


@contextmanager
def started(
    command: Sequence[str], log: Path, is_ready: Callable[[Path], bool], timeout_s: float, **options: Any
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a server that prints to a log, wait until it is ready by this log, and end it at the end of the block.

    Raises:
        ScriptError: it has ended, or is not ready in time; with the end of its log.
    """
    with log.open("wb") as stream:
        process = subprocess.Popen(command, stdout=stream, stderr=subprocess.STDOUT, **options)  # noqa: S603
    give_up = time.monotonic() + timeout_s
    try:
        while not is_ready(log):
            if process.poll() is not None or time.monotonic() > give_up:
                raise ScriptError(f"the server did not start: {log.read_text(errors='replace')[-2000:]}")
            time.sleep(LOOK_EVERY_S)
        yield process
    finally:
        stop(process)


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a server, as Ctrl-C does, and then every process of it that is left."""
    tree: list[psutil.Process] = []
    with suppress(psutil.Error):
        tree = psutil.Process(process.pid).children(recursive=True)
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
    with suppress(subprocess.TimeoutExpired):
        process.wait(STOP_TIMEOUT_S)
    for left in tree:
        with suppress(psutil.Error):
            left.kill()
    process.kill()
    process.wait()
