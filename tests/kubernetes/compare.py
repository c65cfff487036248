"""A pod, and `ensemble serve` with the same application on the same cores, loaded in turn."""

import json
import os
import statistics
import subprocess
import sys

import yaml

from tests.kubernetes.chart import rendered
from tests.kubernetes.node import RUN, K, get, inside, workers
from tests.kubernetes.release import KEYS, chosen
from tests.server.server import Server

# Clients at a time, and how often each load is measured, for how long.
LOADS, TURNS, LOAD_S = (8, 32), 3, 8


def rate(url, key, count):
    """Requests per second, at so many clients."""
    command = ("-m", "scripts.cli", "load", url, "--concurrency", str(count), "--seconds", str(LOAD_S))
    given = {"env": {**os.environ, "ENSEMBLE_API_KEY": key}, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = inside(*command, "--json", str(RUN / "load.json"), **given)
    assert process.wait() == 0
    return json.loads((RUN / "load.json").read_text())["rows"][0]["requests_per_s"]


def compare(key):
    """Load a pod, and `ensemble serve` with the same application on the same cores, in turn."""
    [service] = [each for each in rendered(chosen(), "--set-file", f"keys.file={KEYS}") if each["kind"] == "RayService"]
    served = yaml.safe_load(service["spec"]["serveConfigV2"])
    [application] = served["applications"]
    application["args"]["access"]["keys"] = str(RUN / "keys")
    application["deployments"][0]["num_replicas"] = 1
    served["http_options"]["host"] = "127.0.0.1"
    pod = f"http://{get('pod', workers()[0])['status']['podIP']}:8000"
    # The server runs where the clients run: in the node's network.
    command = RUN / "ensemble"
    command.write_text(f'#!/bin/sh\nexec {K / "inside"} {sys.executable} -P -m scripts.cli "$@"\n')
    command.chmod(0o755)
    with Server(served, python=command) as server:
        for count in LOADS:
            seen = {"pod": [], "ensemble serve": []}
            for _ in range(TURNS):
                for name, url in (("pod", pod), ("ensemble serve", server.url)):
                    seen[name].append(rate(url, key, count))
            found = {name: round(statistics.median(each), 1) for name, each in seen.items()}
            print({"clients": count, **found, "all": seen}, flush=True)
