"""A slot behind HAProxy, whose configuration names its sockets: a replica takes the first free one and keeps it."""

import fcntl
import os
import socket
from io import IOBase
from pathlib import Path

from deployments.contract.errors import ConfigurationError

# Variables of the environment behind a HAProxy of ours: the folder of the sockets, the application's name, and in JSON
# the `grpc_servicer_functions`.
FOLDER, APPLICATION, FUNCTIONS = "ENSEMBLE_FRONT", "ENSEMBLE_FRONT_APPLICATION", "ENSEMBLE_FRONT_FUNCTIONS"
# A rollout has twice the replicas for a moment. HAProxy's checks of slots that nobody has taken take CPU time, too.
SLOTS = 32
# The protocol whose socket tells HAProxy, and who starts it, whether a replica is there.
CHECKED = "http"
COMMANDS = "commands"
# HAProxy's name for a replica, by the number of its slot; the replica's servers of other protocols track this one.
SERVER = "replica-{}"
# HAProxy's server that is up while the last replica leaves, where a load balancer is in front of HAProxy, and the
# seconds in which that one notices that nothing is ready here.
LEAVING, NOTICE_S = "leaving/now", 10
# HAProxy's frontend of gRPC, whose clients keep their connections.
GRPC_CLIENTS = "grpc-clients"
# HAProxy answers a command at once, or is gone.
ANSWER_S = 2.0


class Slot:
    """A slot, numbered from 1 on, that this process has until it ends."""

    def __init__(self, folder: Path, number: int, lock: IOBase) -> None:
        """Set the folder of the sockets, the slot's number and its lock, which is held."""
        self.number = number
        self._folder, self._lock = folder, lock

    def path(self, protocol: str) -> Path:
        """Return the path of the socket on which HAProxy calls this replica by a protocol."""
        return path(self._folder, protocol, self.number)

    def open(self) -> None:
        """Make HAProxy send requests, at once."""
        if not self.renew():
            command(self._folder, f"set server {LEAVING} state maint", *opening(self.number))

    def announce(self) -> bool:
        """Make HAProxy tell its load balancer that the last replica leaves; return whether there are both."""
        return self._is_last() and not command(self._folder, f"set server {LEAVING} state ready").strip()

    def dismiss(self) -> None:
        """Make HAProxy end each connection of gRPC with its next answer, if the last replica leaves."""
        if self._is_last():
            command(self._folder, f"shutdown frontend {GRPC_CLIENTS}")

    def renew(self) -> bool:
        """End HAProxy if it has dismissed its clients, so that it is started again; return whether it had."""
        has_dismissed = "shut down" in command(self._folder, f"enable frontend {GRPC_CLIENTS}")
        if has_dismissed:
            # HAProxy may be in another container, where no signal reaches it.
            command(self._folder, "expert-mode on", "debug dev exit")
        return has_dismissed

    def _is_last(self) -> bool:
        return opened(self._folder) == [self.number]

    def drain(self) -> None:
        """Make HAProxy send no more requests; requests that it has begun to send still come."""
        command(self._folder, f"set server {server(self.number)} state drain")

    def release(self) -> None:
        """Let another replica take the slot."""
        self._lock.close()


def path(folder: Path, protocol: str, number: int) -> Path:
    """Return the path of a slot's socket."""
    return folder / f"{protocol}-{number}"


def take(folder: Path) -> Slot:
    """Take the first free slot.

    Raises:
        ConfigurationError: each has a replica.
        OSError: the folder is gone.
    """
    for number in range(1, SLOTS + 1):
        # Not inherited by what this process starts. The lock ends with the process, however it ends.
        lock = (folder / f"{number}.lock").open("a")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            continue
        return Slot(folder, number, lock)
    raise ConfigurationError(f"HAProxy knows {SLOTS} replicas of the ingress, and there are as many; have fewer")


def opening(number: int) -> list[str]:
    """Return the commands by which HAProxy uses a slot at once, without waiting for its next health check."""
    return [f"set server {server(number)} {word}" for word in ("state ready", "health up")]


def server(number: int) -> str:
    """Return HAProxy's name for the server of a slot that HAProxy checks."""
    return f"{CHECKED}/{SERVER.format(number)}"


def opened(folder: Path) -> list[int]:
    """Return the numbers of the slots where replicas listen."""
    there = {each.name for each in folder.glob(f"{CHECKED}-*")}
    return [number for number in range(1, SLOTS + 1) if path(folder, CHECKED, number).name in there]


def command(folder: Path, *commands: str) -> str:
    """Send commands to HAProxy and return its answer; raise OSError if HAProxy is not there."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(ANSWER_S)
        connection.connect(os.fspath(folder / COMMANDS))
        connection.sendall("; ".join(commands).encode() + b"\n")
        return b"".join(iter(lambda: connection.recv(65_536), b"")).decode()
