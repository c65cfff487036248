"""The manifests for Kubernetes, by the published schemas of what they use (`kubernetes_schemas.py`)."""

import json
import re
import shlex
import tomllib
from importlib.metadata import version
from pathlib import Path

import jsonschema
import pytest
import yaml
from ray.serve.schema import ServeDeploySchema

from deployments.ingress.listeners import slot
from graph.config import parse
from scripts import keys
from scripts.commands import COMMANDS
from scripts.configuration import why_serve
from scripts.serve.exposure import CERTIFICATE, CERTIFICATE_KEY
from scripts.serve.ports import GRPC_PORT, HTTP_PORT
from scripts.serve.server import READY_TIMEOUT_S
from tests.conftest import ROOT
from tests.unit.configs.kubernetes_schemas import MANIFESTS, SCALING, SCHEMAS, TLS, TRACES, documents, with_options

FOLDER = ROOT / "configs" / "kubernetes"
KNOWN = json.loads(SCHEMAS.read_text())
SERVICES = [yaml.safe_load((FOLDER / name).read_text()) for name in ("rayservice.yaml", "rayservice-ha.yaml")]


def groups(service):
    cluster = service["spec"]["rayClusterConfig"]
    return [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]


def front_of(workers):
    [front] = [each for each in workers["template"]["spec"]["containers"] if each["name"] == "front"]
    return front


def errors(document):
    schema = KNOWN[f"{document['apiVersion']} {document['kind']}"]
    return [each.message for each in jsonschema.Draft7Validator(schema).iter_errors(document)]


@pytest.mark.parametrize("file", MANIFESTS, ids=lambda file: file.name)
def test_the_schemas_allow_every_manifest(file):
    found = list(yaml.safe_load_all(file.read_text()))
    assert found
    assert [error for document in found for error in errors(document)] == []


def test_the_schemas_are_of_what_is_used_and_refuse_what_they_do_not_know():
    assert KNOWN.keys() == documents().keys()
    [service] = yaml.safe_load_all((FOLDER / "rayservice.yaml").read_text())
    groups(service)[1]["replicsa"] = groups(service)[1].pop("replicas")
    groups(service)[0]["rayStartParams"]["num-cpus"] = 0
    service["spec"]["rayClusterConfig"]["authOptions"]["mode"] = "password"
    del groups(service)[1]["groupName"]
    assert len(errors(service)) == 4


def test_the_services_are_alike_but_for_the_state_of_the_head():
    plain, available = (service["spec"]["rayClusterConfig"] for service in SERVICES)
    assert available.pop("gcsFaultToleranceOptions")["redisAddress"] == "ensemble-redis:6379"
    assert plain == available


@pytest.mark.parametrize("service", SERVICES, ids=["plain", "high availability"])
def test_the_application_is_one_that_this_version_builds(service, tmp_path):
    assert service["spec"]["rayClusterConfig"]["rayVersion"] == version("ray")
    served = yaml.safe_load(service["spec"]["serveConfigV2"])
    ServeDeploySchema.model_validate(served)
    [application] = served["applications"]
    keys.add(tmp_path / "keys", "client", None)
    mounted = application["args"]["access"].pop("keys")
    application["args"]["access"]["keys"] = str(tmp_path / "keys")
    assert why_serve(served) is None
    parse(application["args"])
    [ingress] = application["deployments"]
    head, workers = groups(service)
    assert head["rayStartParams"]["num-cpus"] == "0"
    assert ingress["num_replicas"] == workers["replicas"] * ingress["max_replicas_per_node"]
    for pods in (head, workers):
        container = pods["template"]["spec"]["containers"][0]
        assert container["volumeMounts"][0]["mountPath"] + "/keys" == mounted
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        assert ports["metrics"] == int(pods["rayStartParams"]["metrics-export-port"])
        for probe in ("readinessProbe", "livenessProbe"):
            assert container[probe]["grpc"]["port"] == int(pods["rayStartParams"]["node-manager-port"])


@pytest.mark.parametrize("service", SERVICES, ids=["plain", "high availability"])
def test_haproxy_is_beside_the_replicas_of_each_worker(service):
    [application] = yaml.safe_load(service["spec"]["serveConfigV2"])["applications"]
    _, workers = groups(service)
    ray, front = workers["template"]["spec"]["containers"]
    variables = {each["name"]: each["value"] for each in ray["env"]}
    assert variables[slot.APPLICATION] == application["name"]
    assert {"name": slot.FOLDER, "value": variables[slot.FOLDER]} in front["env"]
    for container in (ray, front):
        mounted = {each["mountPath"]: each["name"] for each in container["volumeMounts"]}
        # Ray's temporary folder: the front prints what replicas log there.
        assert mounted[str(Path(variables[slot.FOLDER]).parent)] == "ray"
    assert front["image"] == ray["image"]
    assert COMMANDS["Serve"][front["command"][1]][0] == "scripts.serve.sidecar"
    ports = {port["name"]: port["containerPort"] for port in front["ports"]}
    assert ports == {"http": HTTP_PORT, "grpc": GRPC_PORT}
    # HAProxy has had its time before Ray ends, and Kubernetes waits for both.
    [ends] = re.findall(r"sleep (\d+)", ray["lifecycle"]["preStop"]["exec"]["command"][2])
    assert slot.NOTICE_S < int(ends) < workers["template"]["spec"]["terminationGracePeriodSeconds"]
    probe = front["readinessProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] + probe["timeoutSeconds"] < slot.NOTICE_S


@pytest.mark.parametrize("file", ["rayservice.yaml", "rayservice-ha.yaml"])
def test_the_lines_for_tls_and_traces_are_right_without_their_hash(file):
    service = yaml.safe_load(with_options(FOLDER / file, TLS, TRACES))
    front = front_of(groups(service)[1])
    named = {each["name"]: each["value"] for each in front["env"]}
    mounted = {each["mountPath"]: each["name"] for each in front["volumeMounts"]}
    for variable in (CERTIFICATE, CERTIFICATE_KEY):
        assert mounted[str(Path(named[variable]).parent)] == "tls"
    for pods in groups(service):
        assert "tls" in {each["name"] for each in pods["template"]["spec"]["volumes"]}
    assert errors(service) == []


@pytest.mark.parametrize("file", ["rayservice.yaml", "rayservice-ha.yaml"])
def test_the_lines_for_scaling_are_right_without_their_hash(file, tmp_path):
    service = yaml.safe_load(with_options(FOLDER / file, SCALING))
    assert errors(service) == []
    served = yaml.safe_load(service["spec"]["serveConfigV2"])
    [application] = served["applications"]
    keys.add(tmp_path / "keys", "client", None)
    application["args"]["access"]["keys"] = str(tmp_path / "keys")
    [ingress] = application["deployments"]
    del ingress["num_replicas"]
    ServeDeploySchema.model_validate(served)
    assert why_serve(served) is None
    head, workers = groups(service)
    scaled = ingress["autoscaling_config"]
    assert (scaled["min_replicas"], scaled["max_replicas"]) == (workers["minReplicas"], workers["maxReplicas"])
    # The autoscaler's container is the only one with a token for Kubernetes.
    cluster = service["spec"]["rayClusterConfig"]
    assert cluster["enableInTreeAutoscaling"]
    mounted = {each["name"] for each in cluster["autoscalerOptions"]["volumeMounts"]}
    assert mounted == {"ray", "api"} <= {each["name"] for each in head["template"]["spec"]["volumes"]}
    for pods in (head, workers):
        assert pods["template"]["spec"]["automountServiceAccountToken"] is False
        for container in pods["template"]["spec"]["containers"]:
            assert "api" not in {each["name"] for each in container["volumeMounts"]}


def test_a_server_in_one_container_may_start_as_long_as_it_allows_itself():
    [runtime] = yaml.safe_load_all((FOLDER / "serving-runtime.yaml").read_text())
    [container] = runtime["spec"]["containers"]
    probe = container["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] >= READY_TIMEOUT_S
    assert probe["httpGet"] == container["livenessProbe"]["httpGet"]


def test_the_switches_are_those_of_the_server():
    words = [word for line in (ROOT / "configs" / "serve.env").open() for word in shlex.split(line, comments=True)]
    [switches] = yaml.safe_load_all((FOLDER / "switches.yaml").read_text())
    assert switches["data"] == dict(word.split("=", 1) for word in words)


def test_what_selects_pods_finds_them():
    labels = [pods["template"]["metadata"]["labels"] for service in SERVICES for pods in groups(service)]
    found = documents()
    [budget] = found["policy/v1 PodDisruptionBudget"]
    policy = found["networking.k8s.io/v1 NetworkPolicy"][0]
    [monitored] = [each for each in found["v1 Service"] if each["metadata"]["name"] == "ensemble-metrics"]
    # The other label is KubeRay's own.
    wanted = dict(budget["spec"]["selector"]["matchLabels"])
    assert wanted.pop("ray.io/node-type") == "worker"
    for selector in (wanted, policy["spec"]["podSelector"]["matchLabels"], monitored["spec"]["selector"]):
        assert all(selector.items() <= each.items() for each in labels)
    [clients] = [each for each in found["v1 Service"] if each["metadata"]["name"] == "ensemble"]
    assert clients["spec"]["selector"] == budget["spec"]["selector"]["matchLabels"]
    fronts = [front_of(groups(service)[1]) for service in SERVICES]
    for port in clients["spec"]["ports"]:
        assert all(port["targetPort"] in {each["name"] for each in front["ports"]} for front in fronts)
    [monitor] = found["monitoring.coreos.com/v1 ServiceMonitor"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= monitored["metadata"]["labels"].items()
    assert monitor["spec"]["endpoints"][0]["port"] == monitored["spec"]["ports"][0]["name"]


# What every manifest of Kubernetes has, and the parts of a pod that need no reason.
USUAL = {
    *("apiVersion", "kind", "metadata", "name", "labels", "spec", "selector", "matchLabels", "data", "template"),
    *("containers", "image", "command", "env", "value", "key", "port", "ports", "path", "protocol", "volumeMounts"),
}
# A field that has a reason explains those inside it.
PODS = {"securityContext", "volumes", "envFrom", "resources", "lifecycle", "topologySpreadConstraints", "env"}
PODS |= {"readinessProbe", "livenessProbe", "startupProbe", "volumeMounts", "ingress", "endpoints", "strategy"}
PODS |= {"authOptions", "supportedModelFormats", "gcsFaultToleranceOptions", "ports"}


def reasoned(value):
    """The fields of a manifest that a comment explains."""
    if isinstance(value, list):
        for each in value:
            yield from reasoned(each)
    elif isinstance(value, dict):
        for name, each in value.items():
            yield name
            if name not in {"labels", "matchLabels", "data", "selector"} | PODS:
                yield from reasoned(each)


def explained():
    """The words of the comments of all manifests: rayservice.yaml explains most fields of the others, too."""
    lines = [line for file in MANIFESTS for line in file.read_text().splitlines()]
    return {word for line in lines for word in re.findall(r"[\w-]+", line.partition("# ")[2])}


@pytest.mark.parametrize("file", MANIFESTS, ids=lambda file: file.name)
def test_comments_explain_every_field_that_is_not_usual(file):
    fields = {name for document in yaml.safe_load_all(file.read_text()) for name in reasoned(document)}
    assert sorted(fields - USUAL - explained()) == []


def test_maintenance_takes_one_worker_at_a_time():
    [budget] = documents()["policy/v1 PodDisruptionBudget"]
    # `maxUnavailable` blocks every eviction: the owner of the pods, a RayCluster, has no scale subresource.
    assert "maxUnavailable" not in budget["spec"]
    for service in SERVICES:
        _, workers = groups(service)
        assert budget["spec"]["minAvailable"] == workers["replicas"] - 1


def test_the_runtime_for_kserve_claims_the_protocols_whose_ports_it_declares():
    [runtime] = yaml.safe_load_all((FOLDER / "serving-runtime.yaml").read_text())
    [container] = runtime["spec"]["containers"]
    assert runtime["spec"]["protocolVersions"] == ["v2"]
    assert [port["containerPort"] for port in container["ports"]] == [8000]


def test_the_image_takes_the_extras_of_every_kind_of_bucket():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {"s3", "gs", "az", "hf"} <= extras.keys()
    assert '".[$EXTRAS]"' in (ROOT / "Dockerfile").read_text()


def test_the_image_installs_what_make_serve_installs():
    [base] = re.findall(r"^BASE = (.*)$", (ROOT / "Makefile").read_text(), re.M)
    [image] = re.findall(r"^RUN .* --no-deps (.*)$", (ROOT / "Dockerfile").read_text(), re.M)
    made = set(re.findall(r"packages/\w+", base.replace("$(PLUGINS)", "packages/plugins")))
    assert set(re.findall(r"packages/\w+", image)) == made
    assert made <= {line.removeprefix("!") for line in (ROOT / ".dockerignore").read_text().splitlines()}
