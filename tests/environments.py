"""Environments for software that can't live beside Ray: made once, kept in the user's cache folder."""

import fcntl
import hashlib
import json
import os
import subprocess
import venv
from pathlib import Path

CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "ensemble-serving" / "environments"


def environment(name, lock):
    """The Python of an environment with what a lock file lists."""
    content = lock.read_bytes()
    folder = CACHE / f"{name}-{hashlib.sha256(content).hexdigest()[:12]}"
    python = folder / "bin" / "python"
    CACHE.mkdir(parents=True, exist_ok=True)
    # Of several processes that want it one makes it, and the others wait.
    with folder.with_suffix(".lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        _make(folder, python, lock)
    return python


def _make(folder, python, lock):
    if not (folder / "complete").exists():
        venv.create(folder, with_pip=True, clear=True)
        command = [
            python,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--no-deps",
            "--require-hashes",
        ]
        subprocess.run([*command, "-r", lock], check=True)
        (folder / "complete").touch()


def ask(python, script, *arguments):
    """What a script prints, as JSON."""
    done = subprocess.run([python, script, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
