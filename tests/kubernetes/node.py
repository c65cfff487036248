"""The node that node.sh starts: its API by kubectl and Helm, and programs in its network."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from tests.kubernetes.chart import HELM

K = Path(os.environ["K"])
RUN = K / "run"
READY_S = 400


def kubectl(*arguments, given=None):
    done = subprocess.run([K / "kubectl", *arguments], input=given, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"kubectl {' '.join(arguments)}: {done.stderr}")
    return done.stdout


def get(*arguments):
    return json.loads(kubectl("get", *arguments, "--output", "json"))


def helm(*arguments, given=None):
    command = [K / "inside", HELM, "--kubeconfig", K / "pki" / "admin.conf", *arguments]
    done = subprocess.run(command, input=given, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"helm {' '.join(map(str, arguments))}: {done.stderr}")
    return done.stdout


def inside(*command, **options):
    return subprocess.Popen([K / "inside", sys.executable, *command], text=True, **options)


def wait(what, check, seconds=READY_S):
    """Wait until `check` is true; the seconds that it took."""
    began = time.monotonic()
    while not check():
        if time.monotonic() > began + seconds:
            seen = kubectl("get", "rayservice,pods", "--all-namespaces", "--output", "wide")
            raise TimeoutError(f"not {what} after {seconds} s\n{seen}")
        time.sleep(0.2)
    return time.monotonic() - began


def pods(selector, *options):
    """The names of the pods that are ready."""
    ready = []
    for pod in get("pods", "--selector", selector, *options)["items"]:
        conditions = {each["type"]: each["status"] for each in pod["status"].get("conditions", [])}
        if conditions.get("Ready") == "True" and "deletionTimestamp" not in pod["metadata"]:
            ready.append(pod["metadata"]["name"])
    return ready


def workers():
    return pods("ray.io/node-type=worker")


def heads():
    return pods("ray.io/node-type=head")


def secret(kind, name, *content):
    """Make a Secret or replace it, as docs/kubernetes.md does."""
    made = kubectl("create", "secret", kind, name, *content, "--dry-run=client", "--output", "yaml")
    kubectl("apply", "--filename", "-", given=made)


def fetched(url, *options):
    """The body of an answer to curl in the node's network."""
    command = [K / "inside", "curl", "--silent", "--show-error", "--fail", *options, url]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
