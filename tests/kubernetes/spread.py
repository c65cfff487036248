"""The calls of one gRPC channel, by the headless service and by the one with an address: which worker answers them."""

import json
import re
import subprocess
from pathlib import Path

from tests.kubernetes.clients import add
from tests.kubernetes.node import K, fetched, get, heads, wait, workers
from tests.kubernetes.release import IMAGE

CALLS = 1000
SCRIPT = Path(__file__).with_name("spread_script.py")


def counted():
    """The calls that each worker has answered over gRPC, by its own metrics."""
    found = {}
    for name in workers():
        metrics = fetched(f"http://{get('pod', name)['status']['podIP']}:9102/metrics")
        counts = re.findall(r'^ray_ensemble_requests_total\{.*protocol="grpc".* (\S+)$', metrics, re.MULTILINE)
        found[name] = int(sum(map(float, counts)))
    return found


def answered(service, key):
    """Let a program in the head's pod call over one channel; how many of its calls each worker has answered."""
    before, [head] = counted(), heads()
    command = [K / "kubectl", "exec", "--stdin", head, "--container=ray-head", "--", "python", "-c", SCRIPT.read_text()]
    with open(IMAGE, "rb") as image:
        labels = subprocess.check_output([*command, f"dns:///{service}:9000", key, str(CALLS)], stdin=image)
    assert json.loads(labels) == {"cat": CALLS}
    wait("counted", lambda: sum(counted().values()) >= sum(before.values()) + CALLS, 60)
    return sorted(now - before[name] for name, now in counted().items())


def spread(key):
    """Compare the two services."""
    for service in ("ensemble", "ensemble-headless"):
        found = answered(service, key)
        add(f"{CALLS} calls of one channel to {service}", 0, by_worker=found)
        assert sum(found) == CALLS
    assert all(0.4 <= each / CALLS <= 0.6 for each in found), found
