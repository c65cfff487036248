"""Installs the chart of configs/kubernetes on the node that node.sh starts; prints rows for docs/benchmarks/faults.md.

    python -m tests.kubernetes.prove [STEP...]      default: all, in the order of STEPS

Pods are deleted, and the configuration, the image and the keys are changed, while clients send an image again and again
to the address of the service; a Prometheus of its operator reads all pods; and a pod is loaded in turn with `ensemble
serve`. Exits with 1 if a request failed.
"""

import json
import subprocess
import sys
import time
from contextlib import ExitStack
from functools import partial

from scripts import keys
from tests.certificates import self_signed
from tests.kubernetes import monitoring
from tests.kubernetes.clients import CLIENTS, add, answers, clients, rows
from tests.kubernetes.compare import compare
from tests.kubernetes.node import RUN, K, get, heads, kubectl, secret, wait, workers
from tests.kubernetes.release import (
    HA,
    KEY,
    KEYS,
    NEXT,
    address,
    back,
    classified,
    existing,
    install,
    is_ready,
    leave,
    ready_since,
    statuses,
    token,
    versions,
)
from tests.kubernetes.spread import spread

# How long a key lasts that was replaced: longer than the node takes to show pods the changed Secret.
OVERLAP_S = 150
# What the namespace held before the release.
BEFORE = RUN / "before"
ENSEMBLE = (sys.executable, "-P", "-m", "scripts.cli")


def start(what, key, **choices):
    install(**choices)
    ready = wait("Ready", is_ready)
    add(f"{what} until Ready", ready)
    add(f"{what} until answered", ready + wait("answered", lambda: answers(key), 60))


def delete(which, key, what):
    """Delete a pod under load, until there is another one in its place."""
    wait("ready", is_ready)
    before = which()
    with clients(what, key):
        kubectl("delete", "pod", before[0], "--wait=false")
        wait("replaced", lambda: len(now := which()) == len(before) and before[0] not in now and is_ready())


def change(key, what, *, how=install, pause_s=0.0, count=2, version=2, **changes):
    """Change the cluster under load, until the old pods are gone. The new one has another token, and this version."""
    before, former = heads(), token()
    with clients(what, key, pause_s=pause_s):
        how(count=count, **changes)
        wait("changed", lambda: not set(before) & set(heads()) and is_ready(count))
    assert token() != former, "the second cluster has the token of the first"
    assert versions(key) == {version}


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


def watch(key):
    """Install ServiceMonitor and PrometheusRule under load, and let the operator's Prometheus read all pods."""
    add("the operator's Prometheus until Ready", monitoring.begin())
    before = ready_since()
    with clients("ServiceMonitor and PrometheusRule added", key):
        install(monitoring=monitoring.VALUES)
        running = {*heads(), *workers()}
        up = dict.fromkeys(running, "up")
        wait("read", lambda: monitoring.targets() == up, 200)
        wait("counted", lambda: monitoring.total("sum(increase(ray_ensemble_requests_total[1m]))") > 0, 120)
        wait("evaluated", lambda: set(monitoring.alerts().values()) == {"ok"}, 60)
    assert ready_since() == before, "a change of `monitoring` replaced a worker"
    add("Prometheus", 0, targets=monitoring.targets(), alerts=len(monitoring.alerts()))
    install()
    wait("forgotten", lambda: monitoring.targets() == {} and monitoring.alerts() == {}, 200)
    monitoring.end()


def other_version(key):
    """Change a member's version under load, and go back: the replicas load it while they serve."""
    before, [first] = ready_since(), versions(key)
    with clients("helm upgrade to another version of a member", key):
        install(userConfig={"nodes": {"resnet": {"version": 1}}})
        wait("loaded", lambda: versions(key) == {1})
    with clients("helm rollback to the former version", key):
        back()
        wait("loaded", lambda: versions(key) == {first})
    assert (first, ready_since()) == (2, before), "a change of the version replaced a worker"


def hold(key):
    """Start the cluster whose head may be lost, and lose pods."""
    leave()
    start("helm install with a Redis", key, **HA)
    delete(workers, key, "Redis: a worker deleted")
    delete(heads, key, "Redis: the head deleted")
    delete(workers, key, "Redis: a worker deleted right after that")


def everything():
    """The names of all that the namespace holds, but what happened in it."""
    kinds = kubectl("api-resources", "--verbs=list", "--namespaced", "--output=name").split()
    kinds = [kind for kind in kinds if not kind.startswith("events")]
    return set(kubectl("get", ",".join(kinds), "--output=name").split())


def begin():
    """Let the namespace admit only pods of the restricted standard, and go by docs/kubernetes.md to an answer."""
    kubectl("label", "namespace", "default", "pod-security.kubernetes.io/enforce=restricted")
    refused = subprocess.run([K / "kubectl", "run", "root", "--image=localhost/base:1"], capture_output=True, text=True)
    assert 'violates PodSecurity "restricted' in refused.stderr, refused
    BEFORE.write_text(json.dumps(sorted(everything())))
    secret("generic", "ensemble-redis", "--from-literal=password=of-a-test")
    began = time.monotonic()
    key = subprocess.check_output([*ENSEMBLE, "keys", "add", "clients", "--file", KEYS], text=True).strip()
    KEY.write_text(key)
    install("install")
    kubectl("wait", "--for=condition=Ready", "--timeout=10m", "rayservice/ensemble")
    add("helm install until Ready", time.monotonic() - began)
    command = [K / "kubectl", "port-forward", "service/ensemble", "8000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as forward:
        try:
            forward.stdout.readline()
            answer = classified("127.0.0.1", key)
        finally:
            forward.terminate()
    assert answer["label"] == "cat", answer
    add("helm install until answered by port-forward", time.monotonic() - began)


def remove(_):
    """Remove the release, and everything that it made."""
    leave()
    kubectl("delete", "secret", "ensemble-redis", "ensemble-tls", "--ignore-not-found")
    before = set(json.loads(BEFORE.read_text()))
    add("helm uninstall leaves nothing", wait("gone", lambda: everything() <= before, 90))


STEPS = {
    "compare": compare,
    "spread": spread,
    "monitoring": watch,
    "version": other_version,
    "argument": reconfigure,
    "worker": partial(delete, workers, what="a worker deleted"),
    "key": rotate,
    "upgrade": partial(change, what="upgrade to another image with models of its own", image=NEXT, version=1),
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
