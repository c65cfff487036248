"""A cluster under test, `ensemble serve` on the first machine and `ensemble join` on others, and its clients."""

import json
import os
import re
import shutil
import signal
import sys
import tempfile
from collections import Counter
from pathlib import Path

import yaml

from lab.network import run
from tests.server.server import FREQUENT_METRICS, eventually

METRICS_PORT = 19_200
START_S = 240


class Cluster:
    """A cluster of network namespaces, of which the first is its head.

    Attributes:
        http: the port of every machine's entrance for HTTP.
    """

    def __init__(self, content, head):
        """Set a Serve config, which gets keys, and the machine of the head."""
        # Short, because the paths of Unix sockets below it are.
        self.folder = Path(tempfile.mkdtemp(prefix="es-"))
        self._ensemble = Path(sys.executable).with_name("ensemble")
        keys = self.folder / "keys"
        self.key = re.search(r"ens_\S+", run(self._ensemble, "keys", "add", "client", "--file", keys))[0]
        content["applications"][0]["args"]["access"] = {"keys": str(keys)}
        self._file, self._content = self.folder / "config.yaml", content
        self._file.write_text(yaml.safe_dump(content))
        self.http = content["http_options"]["port"]
        self._environment = {
            **os.environ,
            "RAY_TMPDIR": str(self.folder),
            "RAY_METRICS_PORT": str(METRICS_PORT),
            **FREQUENT_METRICS,
            # A cluster has none of what tests set for a Ray on loopback.
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1",
        }
        self.head, self.processes = head, {}

    def __enter__(self):
        self._start(self.head, "serve", self._file)
        return self

    def join(self, machine):
        """Have a machine join, unless it has, and wait until it answers by a replica of its own."""
        process = self.processes.get(machine.address)
        if process is None or process.poll() is not None:
            self._start(machine, "join", self.head.address)

    def deploy(self, arguments):
        """Change arguments of the application on the head, as a user does, and wait until they are in force."""
        self._content["applications"][0]["args"].update(arguments)
        self._file.write_text(yaml.safe_dump(self._content))
        done = self.head.run(self._ensemble, "deploy", self._file, env=self._environment, cwd=self.folder)
        assert done.returncode == 0, done.stdout + done.stderr

    def doctor(self, machine, *options):
        """The exit status of `ensemble doctor` on a machine, and its findings as (verdict, what)."""
        command = [self._ensemble, "doctor", "--json", "--host-address", machine.address, *options]
        done = machine.run(*command, env=self._environment, cwd=self.folder)
        return done.returncode, [(each["verdict"], each["what"]) for each in json.loads(done.stdout)]

    def _start(self, machine, *command):
        command = [self._ensemble, *command, "--host-address", machine.address]
        with self._log(machine).open("w") as log:
            process = machine.start(*command, stdout=log, stderr=log, env=self._environment, cwd=self.folder)
        self.processes[machine.address] = process
        assert eventually(lambda: "Ready" in self.log(machine) or process.poll() is not None, START_S)
        assert process.poll() is None, self.log(machine)
        assert "Ready" in self.log(machine), self.log(machine)

    def _log(self, machine):
        return self.folder / f"{machine.address}.log"

    def log(self, machine):
        """What a machine's command printed so far."""
        return self._log(machine).read_text()

    def calls(self, machine):
        """The batches that a machine's ingress has sent to separate nodes, by the kind of edge."""
        found = Counter()
        text = machine.run("curl", "--silent", f"http://{machine.address}:{METRICS_PORT}/metrics").stdout
        for edge, count in re.findall(r'^ray_ensemble_edge_calls_total\{.*?Edge="(\w+)".*\} (\S+)$', text, re.M | re.I):
            found[edge] += float(count)
        return found

    def stop(self, machine):
        """End a machine's command as Ctrl-C does."""
        process = self.processes.pop(machine.address)
        process.send_signal(signal.SIGINT)
        return process.wait(60)

    def __exit__(self, *_):
        for address, process in reversed(self.processes.items()):
            if process.poll() is None and address != self.head.address:
                process.send_signal(signal.SIGINT)
        if self.processes[self.head.address].poll() is None:
            self.stop(self.head)
        for process in self.processes.values():
            process.wait(60)
        shutil.rmtree(self.folder, ignore_errors=True)


class Clients:
    """Clients on a machine of their own that ask the machines of a cluster, one image after the other, until the end.

    Attributes:
        seen: what they saw, once they have ended: `statuses` by code, error or `degraded`, and `gap_s`, the longest
            time, seconds, in which none of them got an answer.
    """

    def __init__(self, cluster, client, machines, count, image):
        script = Path(__file__).with_name("clients_script.py")
        urls = [f"http://{machine.address}:{cluster.http}/classify" for machine in machines]
        self._process = client.start(
            sys.executable, script, image, cluster.key, count, *urls, stdin=-1, stdout=-1, text=True
        )

    def __enter__(self):
        assert self._process.stdout.readline() == "all answered\n"
        return self

    def __exit__(self, *_):
        self.seen = json.loads(self._process.communicate()[0])
        print(self.seen)


def first_request(cluster, client, machine, image):
    """The status and the answer of one request by a command that users have: curl."""
    answer = client.run(
        *("curl", "--silent", "--write-out", "%{http_code}", "--data-binary", f"@{image}"),
        *("--header", "Content-Type: image/jpeg", "--header", f"Authorization: Bearer {cluster.key}"),
        f"http://{machine.address}:{cluster.http}/classify",
    ).stdout
    return int(answer[-3:]), json.loads(answer[:-3])


def status_without_key(cluster, client, machine):
    """The status of a request without a key."""
    options = ["--silent", "--output", "/dev/null", "--write-out", "%{http_code}", "--data", "x"]
    return int(client.run("curl", *options, f"http://{machine.address}:{cluster.http}/classify").stdout)
