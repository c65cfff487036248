"""Machines on a network: each a network namespace with an address of its own, all on one bridge."""

import itertools
import os
import signal
import subprocess
import time
from contextlib import contextmanager, suppress

NETWORK = "10.77.0"
_numbers = itertools.count(1)


def run(*command):
    """The output of a command that must succeed."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


class Machine:
    """A network namespace, and the processes in it.

    Attributes:
        address: its own, on the bridge.
        inside: the beginning of a command that runs in it.
    """

    def __init__(self, namespace, address):
        self.address = address
        self.inside = ["ip", "netns", "exec", namespace]
        self._namespace = namespace

    def start(self, *command, **options):
        """A process in it."""
        return subprocess.Popen([*self.inside, *map(str, command)], **options)

    def run(self, *command, **options):
        """A command in it that has ended."""
        return subprocess.run([*self.inside, *map(str, command)], capture_output=True, text=True, **options)

    def kill(self):
        """Kill every process in it at once, as a crash of the machine does."""
        while pids := run("ip", "netns", "pids", self._namespace).split():
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            time.sleep(0.01)

    def cable(self, state):
        """Put its cable in (`up`) or pull it out (`down`)."""
        run(*self.inside, "ip", "link", "set", "eth0", state)


@contextmanager
def network(count):
    """So many machines that reach each other; nothing is left of them in the end."""
    prefix = f"es{os.getpid()}-{next(_numbers)}"
    switch, machines = f"{prefix}-switch", []
    namespaces = [switch, *(f"{prefix}-{i}" for i in range(1, count + 1))]
    try:
        for namespace in namespaces:
            run("ip", "netns", "add", namespace)
            run("ip", "-netns", namespace, "link", "set", "lo", "up")
        run("ip", "-netns", switch, "link", "add", "bridge", "type", "bridge")
        run("ip", "-netns", switch, "link", "set", "bridge", "up")
        for number, namespace in enumerate(namespaces[1:], 1):
            here = ["ip", "-netns", namespace]
            port, address = f"port{number}", f"{NETWORK}.{number}"
            run(*here, "link", "add", "eth0", "type", "veth", "peer", "name", port, "netns", switch)
            run("ip", "-netns", switch, "link", "set", port, "master", "bridge", "up")
            run(*here, "address", "add", f"{address}/24", "dev", "eth0")
            run(*here, "link", "set", "eth0", "up")
            machines.append(Machine(namespace, address))
        yield machines
    finally:
        for machine in machines:
            machine.kill()
        for namespace in namespaces:
            subprocess.run(["ip", "netns", "delete", namespace], capture_output=True)
