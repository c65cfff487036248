"""A member that fails on every image, under load: what is answered, and how its logs grow.

python -m tests.conditions.failing [SECONDS]        default: 90
"""

import sys
import tempfile
import time
from pathlib import Path

from tests.networks import CLASSES, brightness, fails_from, store
from tests.server.load import Load
from tests.server.server import Server, config

SECONDS = float((sys.argv[1:] or [90])[0])
ROWS = 6


def logs(server):
    """How many log files there are, and their bytes."""
    sizes = [file.stat().st_size for file in server.ray_logs("**/*") if file.is_file()]
    return len(sizes), sum(sizes)


def main():
    for placement in ("inline", "separate"):
        with tempfile.TemporaryDirectory() as name:
            repository = Path(name)
            store(repository, "good", brightness(3), classes=CLASSES[:3])
            store(repository, "bad", fails_from(5), classes=CLASSES[:3])
            content = config(repository, placement, members=("good", "bad"), ensemble={"quorum": 1})
            with Server(content) as server, Load(server) as load:
                print(f"{placement}:\n{'seconds':>8} {'files':>6} {'KB':>7}  answers")
                for row in range(ROWS + 1):
                    files, size = logs(server)
                    seen = f"{dict(load.statuses)} {dict(load.missing)}"
                    print(f"{row * SECONDS / ROWS:8.0f} {files:6} {size / 1e3:7.0f}  {seen}", flush=True)
                    time.sleep(SECONDS / ROWS)
                print("printed:", len(server.log().splitlines()), "lines;", server.log().splitlines()[-1])


if __name__ == "__main__":
    main()
