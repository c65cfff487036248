"""The release of the chart that is proved: its values, its pods, and what it is asked."""

import json
import subprocess

import yaml

from tests.conftest import ROOT
from tests.kubernetes.chart import CHART
from tests.kubernetes.node import RUN, K, fetched, get, helm, kubectl, wait, workers

KEY, KEYS = RUN / "key", RUN / "keys"
IMAGE = str(ROOT / "tests" / "cat.jpg")
# A head that may be lost; the Redis is Debian's.
HA = {"redis": {"deploy": True, "image": "localhost/base:1"}}
FIRST, NEXT = "ensemble:0.1.0", "ensemble:0.1.1"
# How long a replica is kept that is needed no more, and then its worker.
IDLE_S = 20


def chosen(*, image=FIRST, count=2, patience_ms=3000, models="/models", scales=False, **others):
    """Values for two cores: the pods reserve less. With the next image, models come from its layer.

    With `scales`, `count` is the least number of workers, and one more the most.
    """
    repository, _, tag = image.partition(":")
    requests = {"cpu": "100m", "memory": "256Mi"}
    return {
        "image": {"repository": repository, "tag": tag, "pullPolicy": "Never"},
        "models": {"repository": "" if image == FIRST else models},
        "args": {"ensemble": {"patience_ms": patience_ms}},
        "replicas": count,
        "resources": {name: {"requests": requests} for name in ("head", "worker", "front")},
        "autoscaling": {"enabled": scales, "maxReplicas": count + 1, "keepS": IDLE_S},
        **others,
    }


def install(*command, **choices):
    """Install the chart, or upgrade it, with the current keys."""
    command = command or ("upgrade", "--install", "--reset-values")
    given = yaml.safe_dump(chosen(**choices))
    return helm(*command, "ensemble", CHART, "--set-file", f"keys.file={KEYS}", "--values", "-", given=given)


def back(**_):
    """Go back to the former revision."""
    helm("rollback", "ensemble")


def leave():
    """Remove the release as docs/kubernetes.md does: with a Redis, the service comes first."""
    if "gcsFaultToleranceOptions" in get("rayservice", "ensemble")["spec"]["rayClusterConfig"]:
        kubectl("delete", "rayservice", "ensemble")
    helm("uninstall", "ensemble", "--wait")
    wait("gone", lambda: not get("pods", "--selector", "ray.io/node-type")["items"])


def is_ready(count=2):
    status = get("rayservice", "ensemble").get("status", {})
    ready = [each["status"] for each in status.get("conditions", []) if each["type"] == "Ready"]
    return ready == ["True"] and len(workers()) == count


def existing(kind):
    """How many heads or workers there are, of every cluster, those too that start or end."""
    return len(get("pods", "--selector", f"ray.io/node-type={kind}")["items"])


def address():
    return get("service", "ensemble")["spec"]["clusterIP"]


def ready_since():
    """When each worker became ready."""
    found = {}
    for name in workers():
        conditions = get("pod", name)["status"]["conditions"]
        [found[name]] = [each["lastTransitionTime"] for each in conditions if each["type"] == "Ready"]
    return found


def token():
    """The token of Ray in the cluster that serves."""
    status = get("rayservice", "ensemble")["status"]
    return get("secret", status["activeServiceStatus"]["rayClusterName"])["data"]["auth_token"]


def statuses(key, *options, scheme="http"):
    """The status with which each worker answers curl."""
    command = [K / "inside", "curl", "--silent", "--output", "/dev/null", "--write-out", "%{http_code}", *options]
    command += ["--header", f"Authorization: Bearer {key}", "--header", "Content-Type: image/jpeg"]
    command += ["--data-binary", f"@{IMAGE}", f"{scheme}://localhost:8000/classify", "--connect-to"]
    hosts = [get("pod", name)["status"]["podIP"] for name in workers()]
    return [subprocess.run([*command, f"::{host}:"], stdout=subprocess.PIPE, text=True).stdout for host in hosts]


def versions(key):
    """The versions of the first member that the workers answer with."""
    hosts = [get("pod", name)["status"]["podIP"] for name in workers()]
    return {classified(host, key)["model_versions"]["resnet"] for host in hosts}


def classified(host, key):
    """The answer to curl, as docs/kubernetes.md calls it."""
    headers = ("-H", f"Authorization: Bearer {key}", "-H", "Content-Type: image/jpeg")
    return json.loads(fetched(f"http://{host}:8000/classify", *headers, "--data-binary", f"@{IMAGE}"))
