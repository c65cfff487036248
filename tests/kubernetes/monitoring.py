"""A Prometheus that the Prometheus operator runs on the node, and what it reads of the chart."""

import json
import subprocess

from tests.kubernetes.node import K, get, kubectl, pods, wait

SOURCE = K / "src" / "monitoring"
NAMESPACE = "monitoring"
# What the Prometheus selects.
LABELS = {"release": "watched"}
VALUES = {
    "serviceMonitor": {"enabled": True, "interval": "2s", "labels": LABELS},
    "prometheusRule": {"enabled": True, "docs": "https://docs.example.com", "labels": LABELS},
}
VERSION = "v3.13.1"
EVERYWHERE = {"matchLabels": {}}
PROMETHEUS = {
    "apiVersion": "monitoring.coreos.com/v1",
    "kind": "Prometheus",
    "metadata": {"name": "watching", "namespace": NAMESPACE},
    "spec": {
        "image": "localhost/prometheus:1",
        "version": VERSION,
        "imagePullPolicy": "Never",
        "serviceAccountName": "prometheus",
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 1000,
            "fsGroup": 1000,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}},
        "evaluationInterval": "5s",
        "serviceMonitorSelector": {"matchLabels": LABELS},
        "serviceMonitorNamespaceSelector": EVERYWHERE,
        "ruleSelector": {"matchLabels": LABELS},
        "ruleNamespaceSelector": EVERYWHERE,
    },
}


def begin():
    """Let the operator run a Prometheus, in a namespace that admits only pods of the restricted standard."""
    kubectl("create", "namespace", NAMESPACE)
    kubectl("label", "namespace", NAMESPACE, "pod-security.kubernetes.io/enforce=restricted")
    kubectl("create", "serviceaccount", "prometheus", "--namespace", NAMESPACE)
    # The rights that the operator's own documentation gives it.
    kubectl("apply", "--filename", str(SOURCE / "example" / "rbac" / "prometheus" / "prometheus-cluster-role.yaml"))
    account = f"--serviceaccount={NAMESPACE}:prometheus"
    kubectl("create", "clusterrolebinding", "prometheus", "--clusterrole=prometheus", account)
    kubectl("apply", "--filename", "-", given=json.dumps(PROMETHEUS))
    return wait("a Prometheus", lambda: pods("prometheus=watching", "--namespace", NAMESPACE))


def ask(path, **parameters):
    """The answer of the Prometheus' API."""
    [name] = pods("prometheus=watching", "--namespace", NAMESPACE)
    host = get("pod", name, "--namespace", NAMESPACE)["status"]["podIP"]
    query = [word for each in parameters.items() for word in ("--data-urlencode", "=".join(each))]
    command = [K / "inside", "curl", "--silent", "--show-error", "--get", f"http://{host}:9090/api/v1/{path}", *query]
    answer = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    assert answer["status"] == "success", answer
    return answer["data"]


def targets():
    """The state of each pod that the Prometheus reads."""
    active = ask("targets", state="active")["activeTargets"]
    return {each["labels"]["pod"]: f"{each['health']} {each['lastError']}".strip() for each in active}


def total(expression):
    """The value of an expression; 0 where there is none."""
    return sum(float(each["value"][1]) for each in ask("query", query=expression)["result"])


def alerts():
    """The state of each alert's evaluation, by its name."""
    rules = [rule for group in ask("rules")["groups"] for rule in group["rules"]]
    return {rule["name"]: f"{rule['health']} {rule.get('lastError', '')}".strip() for rule in rules}


def end():
    """Remove the Prometheus and its rights."""
    kubectl("delete", "prometheus", "watching", "--namespace", NAMESPACE)
    kubectl("delete", "namespace", NAMESPACE)
    kubectl("delete", "clusterrolebinding,clusterrole", "prometheus")
