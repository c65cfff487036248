"""A member that fails on every image, under load: what is answered, and how its logs grow.

python -m tests.conditions.failing [PLACEMENT...]        default: inline separate
"""

import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import httpx

from tests.levels import level
from tests.networks import CLASSES, brightness, fails_from, store
from tests.server.server import Server, config, post

PLACEMENTS = sys.argv[1:] or ["inline", "separate"]
SECONDS = 60
ROWS = 6


def logs(server):
    """How many log files there are, and their bytes."""
    sizes = [file.stat().st_size for file in server.ray_logs("**/*") if file.is_file()]
    return len(sizes), sum(sizes)


def ask(server, seconds, seen):
    """Send one image after the other, which the member can't compute."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            answer = post(server, level(250))
            seen[answer.status_code, *answer.json().get("missing", {}).items()] += 1
        except httpx.TransportError as err:
            seen[type(err).__name__] += 1


def main():
    for placement in PLACEMENTS:
        with tempfile.TemporaryDirectory() as name:
            repository = Path(name)
            store(repository, "good", brightness(3), classes=CLASSES[:3])
            # It passes the checks of a start.
            store(repository, "bad", fails_from(240), classes=CLASSES[:3])
            content = config(repository, placement, members=("good", "bad"), ensemble={"quorum": 1})
            with Server(content) as server:
                print(f"{placement}:\n{'seconds':>8} {'files':>6} {'KB':>7}  answers")
                seen = Counter()
                for row in range(ROWS + 1):
                    files, size = logs(server)
                    print(f"{row * SECONDS / ROWS:8.0f} {files:6} {size / 1e3:7.0f}  {dict(seen)}", flush=True)
                    ask(server, SECONDS / ROWS, seen)
                print("printed:", len(server.log().splitlines()), "lines;", server.log().splitlines()[-1])


if __name__ == "__main__":
    main()
