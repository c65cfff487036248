"""Runs the manifests of configs/kubernetes on the node that node.sh starts, and prints the table of docs/kubernetes.md.

Pods are deleted, and the image is upgraded, while clients send an image again and again to the address of the service.
Exits with 1 if a request failed whose connection was its own. A kept connection is cut when its pod ends.
"""

import json
import os
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import yaml

from scripts import keys
from tests.conftest import ROOT

K = Path(os.environ["K"])
IMAGE = str(ROOT / "tests" / "cat.jpg")
FOLDER = ROOT / "configs" / "kubernetes"
CLIENTS = 2
READY_S = 400
ASK = """
import asyncio, sys
from ensemble_serving.client import Client

async def ask():
    async with Client(sys.argv[1], key=sys.argv[2]) as client, asyncio.timeout(60):
        print((await client.classify(open(sys.argv[3], "rb").read())).label)

asyncio.run(ask())
"""
rows = []


def kubectl(*arguments, given=None):
    done = subprocess.run([K / "kubectl", *arguments], input=given, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"kubectl {' '.join(arguments)}: {done.stderr}")
    return done.stdout


def get(*arguments):
    return json.loads(kubectl("get", *arguments, "--output", "json"))


def wait(what, check, seconds=READY_S):
    """Wait until `check` is true; the seconds that it took."""
    began = time.monotonic()
    while not check():
        if time.monotonic() > began + seconds:
            raise TimeoutError(
                f"not {what} after {seconds} s\n" + kubectl("get", "rayservice,pods", "--output", "wide")
            )
        time.sleep(0.2)
    return time.monotonic() - began


def service(name, image="ensemble:0.1.0"):
    """A shipped RayService for two cores: its pods reserve less. With the next image, models come from its layer."""
    document = yaml.safe_load((FOLDER / name).read_text())
    cluster = document["spec"]["rayClusterConfig"]
    for pods in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        [container] = pods["template"]["spec"]["containers"]
        container["image"] = image
        container["resources"]["requests"] = {"cpu": "100m", "memory": "256Mi"}
    if image != "ensemble:0.1.0":
        served = yaml.safe_load(document["spec"]["serveConfigV2"])
        served["applications"][0]["args"]["model_repository"] = "/models"
        document["spec"]["serveConfigV2"] = yaml.safe_dump(served)
    return yaml.safe_dump(document)


def is_ready():
    status = get("rayservice", "ensemble").get("status", {})
    ready = [each["status"] for each in status.get("conditions", []) if each["type"] == "Ready"]
    return ready == ["True"] and len(workers()) == 2


def pods(selector):
    """The names of the pods that are ready."""
    ready = []
    for pod in get("pods", "--selector", selector)["items"]:
        conditions = {each["type"]: each["status"] for each in pod["status"].get("conditions", [])}
        if conditions.get("Ready") == "True" and "deletionTimestamp" not in pod["metadata"]:
            ready.append(pod["metadata"]["name"])
    return ready


def workers():
    return pods("ray.io/node-type=worker")


def heads():
    return pods("ray.io/node-type=head")


def address():
    return get("service", "ensemble-serve-svc")["spec"]["clusterIP"]


def inside(*command, **options):
    return subprocess.Popen([K / "inside", sys.executable, *command], text=True, **options)


def add(what, seconds, **seen):
    rows.append({"what": what, "seconds": round(seconds, 1), **seen})
    print(rows[-1], flush=True)


@contextmanager
def clients(what, key):
    """Clients that send an image again and again; in the end a row for each kind says what they saw.

    Some open a connection for each request, as one behind a proxy may see it; the others keep theirs.
    """
    script = str(ROOT / "tests" / "server" / "cluster" / "clients_script.py")
    command = (script, IMAGE, key, str(CLIENTS), f"http://{address()}:8000/classify")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    processes = {
        connections: inside(*command, env={**os.environ, "CLIENTS_CONNECT": connections}, **pipes)
        for connections in ("anew", "kept")
    }
    for process in processes.values():
        process.stdout.readline()
    began = time.monotonic()
    yield
    seconds = time.monotonic() - began
    for connections, process in processes.items():
        seen = json.loads(process.communicate("")[0])
        answered = seen["statuses"].pop("200", 0)
        failed, gap = seen["statuses"], round(seen["gap_s"], 1)
        add(what, seconds, connections=connections, answered=answered, failed=failed, gap_s=gap)


def answers(key):
    """Whether the service answers over HTTP and gRPC. The first connection after Ready may be refused."""
    for url in (f"http://{address()}:8000", f"grpc://{address()}:9000"):
        asked = inside("-c", ASK, url, key, IMAGE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        if asked.communicate()[0].strip() != "cat":
            return False
    return True


def start(name, key):
    kubectl("apply", "--filename", "-", given=service(name))
    ready = wait("Ready", is_ready)
    add(f"{name} applied until Ready", ready)
    add(f"{name} applied until answered", ready + wait("answered", lambda: answers(key), 60))


def delete(which, key, what):
    """Delete a pod under load, until there is another one in its place."""
    before = which()
    with clients(what, key):
        kubectl("delete", "pod", before[0], "--wait=false")
        wait("replaced", lambda: len(now := which()) == len(before) and before[0] not in now and is_ready())


def upgrade(key):
    before = heads()
    with clients("rayservice.yaml, upgrade to another image with models of its own", key):
        kubectl("apply", "--filename", "-", given=service("rayservice.yaml", "ensemble:0.1.1"))
        wait("upgraded", lambda: not set(before) & set(heads()) and is_ready())


def main():
    secret = K / "run" / "keys"
    key = keys.add(secret, "clients", None)
    kubectl("create", "secret", "generic", "ensemble-keys", f"--from-file=keys={secret}")
    kubectl("create", "secret", "generic", "ensemble-redis", "--from-literal=password=of-a-test")
    for name in ("switches", "disruption", "network"):
        kubectl("apply", "--filename", str(FOLDER / f"{name}.yaml"))
    start("rayservice.yaml", key)
    delete(workers, key, "rayservice.yaml, a worker deleted")
    upgrade(key)
    kubectl("delete", "rayservice", "ensemble", "--wait")
    wait("gone", lambda: not get("pods")["items"])
    redis = (FOLDER / "redis.yaml").read_text().replace("image: redis:7.4", "image: localhost/base:1")
    kubectl("apply", "--filename", "-", given=redis)
    start("rayservice-ha.yaml", key)
    delete(workers, key, "rayservice-ha.yaml, a worker deleted")
    delete(heads, key, "rayservice-ha.yaml, the head deleted")
    delete(workers, key, "rayservice-ha.yaml, a worker deleted right after that")
    sys.exit(1 if any(row["failed"] for row in rows if row.get("connections") == "anew") else 0)


if __name__ == "__main__":
    main()
