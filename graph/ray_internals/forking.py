"""How Ray's Python processes are started by the fork server instead of by themselves."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CLIENT = Path(__file__).with_name("fork_client.py")
# The commands of the raylet by its arguments' names. It ends when an agent has ended, and so an agent's client stays.
STARTED = {
    "--python_worker_command": "leave",
    "--dashboard_agent_command": "stay",
    "--runtime_env_agent_command": "stay",
}


def forked(command: list[str], forks: str, mode: str = "leave") -> list[str]:
    """A command of this Python's, carried out by the fork server of that socket; the same where there is none."""
    return [sys.executable, "-I", "-S", str(CLIENT), forks, mode, *command] if forks else command


def forking(argument: str, forks: str) -> str:
    """An argument of the raylet, whose command, if it has one, is carried out by the fork server of that socket."""
    name, _, command = argument.partition("=")
    if name not in STARTED or not forks:
        return argument
    return f"{name}={subprocess.list2cmdline(forked([], forks, STARTED[name]))} {command}"
