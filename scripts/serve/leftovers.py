"""Finds and ends what an earlier run of Serve left when it was killed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

# Where Serve writes the configuration of its HAProxy.
HAPROXY_FOLDER = Path(os.environ.get("RAY_SERVE_HAPROXY_CONFIG_FILE_LOC", "/tmp/haproxy-serve/haproxy.cfg")).parent  # noqa: S108
PATIENCE_S = 5.0


def leftovers(haproxy_folder: Path = HAPROXY_FOLDER) -> Iterator[psutil.Process]:
    """This user's processes that an earlier run of Serve left when it was killed.

    Ray's own processes end with the one that started them. HAProxy does not, and keeps the ports; nor, for a while,
    does a replica that is busy. A process of a living Ray has a raylet among its ancestors, a leftover has not.
    """
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.uids().real != os.getuid():
                continue
            command = process.cmdline() or [""]
            serves = any(Path(argument).is_relative_to(haproxy_folder) for argument in command[1:])
            is_proxy = Path(command[0]).name == "haproxy" and serves
            if (is_proxy or command[0].startswith("ray::")) and not any(
                "raylet" in parent.name() for parent in process.parents()
            ):
                yield process


def clear_leftovers() -> None:
    """End what an earlier, killed run left behind, and say so."""
    found = list(leftovers())
    for process in found:
        with suppress(psutil.Error):
            print(f"ending a leftover of an earlier run: {process.pid} {' '.join(process.cmdline())[:60]}", flush=True)
            process.kill()
    psutil.wait_procs(found, timeout=PATIENCE_S)
