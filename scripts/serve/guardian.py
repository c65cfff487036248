"""Ends what a server has started, if the server is killed: a process that waits for the server's end.

python -P -m scripts.serve.guardian < PIPE
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from scripts.serve.cluster import clear_leftovers, leftovers


@contextmanager
def guarded() -> Iterator[None]:
    """End what this process starts meanwhile, even if it is killed."""
    # The pipe ends with this process, which alone can write to it.
    guardian = subprocess.Popen(
        [sys.executable, "-P", "-m", "scripts.serve.guardian"], stdin=subprocess.PIPE, start_new_session=True
    )
    try:
        yield
    finally:
        guardian.kill()
        guardian.wait()


def main() -> None:
    """Wait for the end of the server, and end what it has left."""
    sys.stdin.buffer.read()
    while any(leftovers()):
        clear_leftovers()


if __name__ == "__main__":
    main()
