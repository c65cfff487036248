"""Installs the chart of configs/kubernetes on the node that node.sh starts, and prints the table of the benchmarks.

    python -m tests.kubernetes.prove [STEP...]      default: all, in the order of STEPS

Pods are deleted, and the configuration, the image and the keys are changed, while clients send an image again and again
to the address of the service; and a pod is loaded in turn with `ensemble serve`. Exits with 1 if a request failed.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import yaml

from scripts import keys
from tests.certificates import self_signed
from tests.conftest import ROOT
from tests.kubernetes.chart import CHART, HELM, rendered
from tests.server.server import Server

K = Path(os.environ["K"])
RUN = K / "run"
KEY, KEYS = RUN / "key", RUN / "keys"
IMAGE = str(ROOT / "tests" / "cat.jpg")
# A head that may be lost; the Redis is Debian's.
HA = {"redis": {"deploy": True, "image": "localhost/base:1"}}
FIRST, NEXT = "ensemble:0.1.0", "ensemble:0.1.1"
CLIENTS = 2
READY_S = 400
# How long a key lasts that was replaced: longer than the node takes to show pods the changed Secret.
OVERLAP_S = 150
# How long a replica is kept that is needed no more, and then its worker.
IDLE_S = 20
ASK = """
import asyncio, sys
from ensemble_serving.client import Client

async def ask():
    async with Client(sys.argv[1], key=sys.argv[2], ca_file=(sys.argv[4:] or [None])[0]) as client, asyncio.timeout(60):
        print((await client.classify(open(sys.argv[3], "rb").read())).label)

asyncio.run(ask())
"""
# By gRPC, each call on one connection that is kept; no call is sent again.
CALLS = """
import asyncio, collections, json, os, sys, time
from ensemble_serving.client import Client

async def call():
    image, seen, last, gap = open(sys.argv[3], "rb").read(), collections.Counter(), 0, 0.0
    end = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    async with Client(sys.argv[1], key=sys.argv[2], patience_s=0, reconnect_s=0) as client:
        while not end.done():
            try:
                await client.classify(image)
                gap, last = max(gap, time.monotonic() - (last or time.monotonic())), time.monotonic()
                seen["200"] += 1
            except Exception as err:
                seen[type(err).__name__] += 1
                await asyncio.sleep(0.05)
            if sum(seen.values()) == 1:
                print("answered", flush=True)
            await asyncio.sleep(float(os.environ["CLIENTS_PAUSE_S"]))
    print(json.dumps({"statuses": seen, "gap_s": gap}))

asyncio.run(call())
"""
# For the comparison: clients at a time, and how often each load is measured, for how long.
LOADS, TURNS, LOAD_S = (8, 32), 3, 8
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


def helm(*arguments, given=None):
    command = [K / "inside", HELM, "--kubeconfig", K / "pki" / "admin.conf", *arguments]
    done = subprocess.run(command, input=given, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"helm {' '.join(map(str, arguments))}: {done.stderr}")
    return done.stdout


def install(**choices):
    """Install the chart, or upgrade it, with the current keys."""
    given = yaml.safe_dump(chosen(**choices))
    options = ("--install", "--reset-values", "--set-file", f"keys.file={KEYS}", "--values", "-")
    return helm("upgrade", "ensemble", CHART, *options, given=given)


def is_ready(count=2):
    status = get("rayservice", "ensemble").get("status", {})
    ready = [each["status"] for each in status.get("conditions", []) if each["type"] == "Ready"]
    return ready == ["True"] and len(workers()) == count


def existing(kind):
    """How many heads or workers there are, of every cluster, those too that start or end."""
    return len(get("pods", "--selector", f"ray.io/node-type={kind}")["items"])


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
    return get("service", "ensemble")["spec"]["clusterIP"]


def ready_since():
    """When each worker became ready."""
    found = {}
    for name in workers():
        conditions = get("pod", name)["status"]["conditions"]
        [found[name]] = [each["lastTransitionTime"] for each in conditions if each["type"] == "Ready"]
    return found


def inside(*command, **options):
    return subprocess.Popen([K / "inside", sys.executable, *command], text=True, **options)


def add(what, seconds, **seen):
    rows.append({"what": what, "seconds": round(seconds, 1), **seen})
    print(rows[-1], flush=True)


@contextmanager
def clients(what, key, count=CLIENTS, pause_s=0.0):
    """Clients that send an image again and again; in the end a row for each kind says what they saw.

    Some open a connection for each request, as one behind a proxy may see it; some keep theirs; one calls by gRPC.
    """
    script = str(ROOT / "tests" / "server" / "cluster" / "clients_script.py")
    command = (script, IMAGE, key, str(count), f"http://{address()}:8000/classify")
    variables = {**os.environ, "CLIENTS_PAUSE_S": str(pause_s)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    processes = {
        connections: inside(*command, env={**variables, "CLIENTS_CONNECT": connections}, **pipes)
        for connections in ("anew", "kept")
    }
    processes["gRPC"] = inside("-c", CALLS, f"grpc://{address()}:9000", key, IMAGE, env=variables, **pipes)
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


def answers(key, *ca):
    """Whether the service answers over HTTP and gRPC. The first connection after Ready may be refused."""
    secured = "s" if ca else ""
    for url in (f"http{secured}://{address()}:8000", f"grpc{secured}://{address()}:9000"):
        asked = inside("-c", ASK, url, key, IMAGE, *ca, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        if asked.communicate()[0].strip() != "cat":
            return False
    return True


def secret(kind, name, *content):
    """Make a Secret or replace it, as docs/kubernetes.md does."""
    made = kubectl("create", "secret", kind, name, *content, "--dry-run=client", "--output", "yaml")
    kubectl("apply", "--filename", "-", given=made)


def statuses(key, *options, scheme="http"):
    """The status with which each worker answers curl."""
    command = [K / "inside", "curl", "--silent", "--output", "/dev/null", "--write-out", "%{http_code}", *options]
    command += ["--header", f"Authorization: Bearer {key}", "--header", "Content-Type: image/jpeg"]
    command += ["--data-binary", f"@{IMAGE}", f"{scheme}://localhost:8000/classify", "--connect-to"]
    hosts = [get("pod", name)["status"]["podIP"] for name in workers()]
    return [subprocess.run([*command, f"::{host}:"], stdout=subprocess.PIPE, text=True).stdout for host in hosts]


def start(what, key, **choices):
    install(**choices)
    ready = wait("Ready", is_ready)
    add(f"{what} until Ready", ready)
    add(f"{what} until answered", ready + wait("answered", lambda: answers(key), 60))


def leave():
    helm("uninstall", "ensemble", "--wait")
    wait("gone", lambda: not get("pods", "--selector", "ray.io/node-type")["items"])


def delete(which, key, what):
    """Delete a pod under load, until there is another one in its place."""
    wait("ready", is_ready)
    before = which()
    with clients(what, key):
        kubectl("delete", "pod", before[0], "--wait=false")
        wait("replaced", lambda: len(now := which()) == len(before) and before[0] not in now and is_ready())


def token():
    """The token of Ray in the cluster that serves."""
    status = get("rayservice", "ensemble")["status"]
    return get("secret", status["activeServiceStatus"]["rayClusterName"])["data"]["auth_token"]


def change(key, what, *, how=install, pause_s=0.0, count=2, **changes):
    """Change the cluster under load, until the old pods are gone. The new one has a token of its own."""
    before, former = heads(), token()
    with clients(what, key, pause_s=pause_s):
        how(count=count, **changes)
        wait("changed", lambda: not set(before) & set(heads()) and is_ready(count))
    assert token() != former, "the second cluster has the token of the first"


def back(**_):
    """Go back to the former revision."""
    helm("rollback", "ensemble")


def undo(key):
    """Change to a version that can't start, and back, under load."""

    def state():
        pending = get("rayservice", "ensemble")["status"].get("pendingServiceStatus", {})
        return pending.get("applicationStatuses", {}).get("ensemble", {}).get("status")

    with clients("helm upgrade that can't start, until it has failed", key):
        install(image=NEXT, models="/nowhere")
        wait("failed", lambda: state() == "DEPLOY_FAILED")
    with clients("helm rollback from it, until its pods are gone", key):
        back()
        wait("gone", lambda: existing("head") == 1 and is_ready())


def resize(key, count):
    """Change the number of workers of the running cluster under load, as docs/kubernetes.md does."""
    with clients(f"changed to {count} workers", key):
        install(count=count)
        least = {"op": "replace", "path": "/spec/workerGroupSpecs/0/minReplicas", "value": count}
        cluster = kubectl("get", "raycluster", "--output=name").strip()
        kubectl("patch", cluster, "--type=json", f"--patch={json.dumps([least])}")
        wait("changed", lambda: existing("worker") == count and is_ready(count))


def autoscale(key):
    """Let KubeRay's autoscaler add a worker for a load, and take it away again, and go back to a fixed number."""
    change(key, "changed to one worker and an autoscaler", pause_s=1, count=1, scales=True)
    grow(key, "autoscaler")
    shrink(key, "autoscaler")
    change(key, "changed to two workers without an autoscaler", pause_s=1)


def grow(key, what):
    """Load one worker, until the autoscaler's second worker answers."""
    with clients(f"{what}: a load, until there is a second worker", key, count=4 * CLIENTS):
        wait("grown", lambda: len(workers()) == 2)
    assert statuses(key) == ["200", "200"], "the second worker does not answer"


def shrink(key, what):
    """Send few requests, until the autoscaler has taken the second worker away."""
    with clients(f"{what}: hardly a load, until the second worker is gone", key, pause_s=1):
        wait("shrunk", lambda: existing("worker") == 1)


def autoscale_again(key):
    """Let the autoscaler of a head that may be lost add a worker, lose that head, and let the next one take it away."""
    what = "autoscaler with Redis"
    change(key, "Redis: one worker and an autoscaler", pause_s=1, count=1, scales=True, **HA)
    grow(key, what)
    with clients(f"{what}: the head deleted under this load", key, count=4 * CLIENTS):
        [before] = heads()
        kubectl("delete", "pod", before, "--wait=false")
        wait("replaced", lambda: heads() not in ([], [before]) and len(workers()) == 2)
    shrink(key, what)


def rotate(key):
    """Replace the key under load: clients change to the new one when pods know it, and then the old one ends."""
    with ExitStack() as following:
        with clients("key replaced, calls with the old one", key):
            KEY.write_text(new := keys.rotate(KEYS, "clients", OVERLAP_S / 3600))
            end = time.monotonic() + OVERLAP_S
            install()
            add("key replaced until each worker knows it", wait("known", lambda: statuses(new) == ["200", "200"], 130))
            following.enter_context(clients("key replaced, calls with the new one", new))
        assert time.monotonic() < end, "the clients with the old key were late"
        wait("refused", lambda: statuses(key) == ["401", "401"], OVERLAP_S)
        add("old key refused, after its end", time.monotonic() - end)


def secure(key):
    """Serve with TLS by a Secret, and then by another certificate in it."""

    def put(name):
        certificate, private = self_signed(RUN, name, address())
        secret("tls", "ensemble-tls", f"--cert={certificate}", f"--key={private}")
        return certificate

    def show(what, certificate):
        trusted = ("--cacert", certificate)
        known = wait("secured", lambda: statuses(key, *trusted, scheme="https") == ["200", "200"])
        add(f"TLS by a Secret: {what}, until each worker answers curl", known)
        add("TLS by a Secret: until gRPC answers", known + wait("answered", lambda: answers(key, certificate), 60))

    leave()
    certificate = put("first")
    install(tls={"secret": "ensemble-tls"})
    show("installed", certificate)
    show("the certificate renewed", put("renewed"))
    assert statuses(key) == ["000", "000"], "a worker answered without TLS"


def reconfigure(key):
    """Change an argument of the application: Serve replaces one replica after the other, in the same pods."""
    before = ready_since()
    with clients("an argument changed", key):
        install(patience_ms=2900)
        wait("replaced", lambda: len(now := ready_since()) == 2 and not set(before.items()) & set(now.items()))


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


def hold(key):
    """Start the cluster whose head may be lost, and lose pods."""
    leave()
    start("helm install with a Redis", key, **HA)
    delete(workers, key, "Redis: a worker deleted")
    delete(heads, key, "Redis: the head deleted")
    delete(workers, key, "Redis: a worker deleted right after that")


def begin():
    """Let the namespace admit only pods of the restricted standard, and install the chart."""
    kubectl("label", "namespace", "default", "pod-security.kubernetes.io/enforce=restricted")
    KEY.write_text(keys.add(KEYS, "clients", None))
    secret("generic", "ensemble-redis", "--from-literal=password=of-a-test")
    start("helm install", KEY.read_text())


def remove(_):
    """Remove the release, and everything that it made."""
    leave()
    left = kubectl(
        "get",
        "all,secret,configmap,pdb,networkpolicy,rayservice,raycluster",
        "--selector",
        "app.kubernetes.io/instance=ensemble",
        "--output=name",
    )
    assert not left, left
    add("helm uninstall leaves nothing", 0)


STEPS = {
    "compare": compare,
    "argument": reconfigure,
    "worker": partial(delete, workers, what="a worker deleted"),
    "key": rotate,
    "upgrade": partial(change, what="upgrade to another image with models of its own", image=NEXT),
    "rollback": partial(change, what="helm rollback to the former image", how=back),
    "undo": undo,
    "more": partial(resize, count=3),
    "fewer": partial(resize, count=2),
    "autoscale": autoscale,
    "tls": secure,
    "head": hold,
    "head-autoscale": autoscale_again,
    "remove": remove,
}


def main():
    if not KEY.exists():
        begin()
    for step in sys.argv[1:] or STEPS:
        STEPS[step](KEY.read_text())
    sys.exit(1 if any(row.get("failed") for row in rows) else 0)


if __name__ == "__main__":
    main()
