"""The chart for Kubernetes, as Helm renders it, by the published schemas of what it uses (`kubernetes_schemas.py`)."""

import json
import re
import shlex
import shutil
import subprocess
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
from tests.kubernetes.chart import CHART, HELM, POSSIBLE, RUNTIME, helm, pods, refused, rendered, tool
from tests.unit.configs.kubernetes_schemas import EVERYTHING, SCHEMAS, documents

needs_helm = pytest.mark.skipif(not POSSIBLE, reason="no Helm, and no Go to build it with: tests/kubernetes/tools.sh")
FEW = {"keys": {"file": "digests"}}
CASES = {
    "few values": FEW,
    "all values": EVERYTHING,
    "everybody may ask": {"keys": {"required": False}},
    "a bucket, and another Redis": {
        **FEW,
        "models": {"repository": "s3://models/mine", "secret": "bucket"},
        "redis": {"address": "redis.example.com:6379", "secret": "other"},
    },
    "one worker": {**FEW, "replicas": 1},
    "OpenShift": {**FEW, "podSecurityContext": {"runAsUser": None, "fsGroup": None}},
}


@pytest.fixture(scope="module", params=CASES)
def chart(request):
    return rendered(CASES[request.param])


@pytest.fixture(scope="module")
def everything():
    return rendered(EVERYTHING)


def only(chart, kind, name="ensemble"):
    [found] = [each for each in chart if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    return found


def containers(template):
    return {each["name"]: each for each in template["spec"]["containers"]}


def named(container):
    return {each["name"]: each["value"] for each in container["env"]}


def mounted(container):
    return {each["mountPath"]: each["name"] for each in container.get("volumeMounts", [])}


def errors(document):
    schema = json.loads(SCHEMAS.read_text())[f"{document['apiVersion']} {document['kind']}"]
    return [each.message for each in jsonschema.Draft7Validator(schema).iter_errors(document)]


def served(chart, folder):
    """The configuration of Serve, with a file of keys that is there."""
    config = yaml.safe_load(only(chart, "RayService")["spec"]["serveConfigV2"])
    [application] = config["applications"]
    if "access" in application["args"]:
        keys.add(folder / "keys", "client", None)
        assert application["args"]["access"]["keys"] == "/etc/ensemble/keys"
        application["args"]["access"]["keys"] = str(folder / "keys")
    return config


@needs_helm
def test_the_schemas_allow_everything_that_is_rendered(chart):
    assert [error for document in chart for error in errors(document)] == []


def test_the_schemas_allow_the_runtime_for_kserve():
    assert errors(yaml.safe_load(RUNTIME.read_text())) == []


@needs_helm
def test_the_schemas_are_of_what_is_used_and_refuse_what_they_do_not_know():
    assert json.loads(SCHEMAS.read_text()).keys() == documents().keys()
    service = only(rendered(FEW), "RayService")
    cluster = service["spec"]["rayClusterConfig"]
    [workers] = cluster["workerGroupSpecs"]
    workers["replicsa"] = workers.pop("replicas")
    cluster["headGroupSpec"]["rayStartParams"]["num-cpus"] = 0
    cluster["authOptions"]["mode"] = "password"
    del workers["groupName"]
    assert len(errors(service)) == 4


@needs_helm
def test_kubernetes_restricted_standard_accepts_every_pod(chart):
    templates = [template for document in chart for template in pods(document)]
    assert len(templates) >= 2
    assert refused(templates) == ""
    templates[1]["spec"]["containers"][-1]["securityContext"]["capabilities"]["add"] = ["NET_ADMIN"]
    assert "NET_ADMIN" in refused(templates)


@needs_helm
def test_kubernetes_restricted_standard_accepts_the_runtime_for_kserve():
    assert refused(pods(yaml.safe_load(RUNTIME.read_text()))) == ""


@needs_helm
def test_no_container_writes_to_its_root(chart):
    for template in [template for document in chart for template in pods(document)]:
        for container in template["spec"]["containers"]:
            assert container["securityContext"]["readOnlyRootFilesystem"]
            if container["name"] != "redis":
                assert mounted(container).items() >= {"/tmp": "tmp", "/tmp/ray": "ray"}.items()
                assert named(container)["HOME"] == "/tmp"


@needs_helm
def test_helm_finds_nothing_to_lint():
    done = tool(HELM, "lint", "--strict", CHART, "--values", "-", given=yaml.safe_dump(EVERYTHING))
    assert done.returncode == 0, done.stdout


@needs_helm
@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({}, "ensemble keys add NAME --file keys"),
        ({"keys": {"file": "digests", "secret": "mine"}}, "leave one of them empty"),
        ({**FEW, "replica": 3}, "replica"),
        ({**FEW, "replicas": 0}, "replicas"),
        ({**FEW, "args": {"members": []}}, "members"),
        ({**FEW, "ingress": {"enabled": True, "tlsSecret": "host"}}, "ingress.host"),
        ({**FEW, "autoscaling": {"enabled": True, "maxReplicas": 1}}, "maxReplicas"),
        ({**FEW, "redis": {"address": "r:6379", "deploy": True}}, "redis.deploy"),
    ],
)
def test_values_that_would_not_work_are_refused(values, told):
    done = helm(values)
    assert done.returncode != 0
    assert told in done.stderr


@needs_helm
def test_the_application_is_one_that_this_version_builds(chart, tmp_path):
    service = only(chart, "RayService")
    cluster = service["spec"]["rayClusterConfig"]
    assert cluster["rayVersion"] == version("ray")
    config = served(chart, tmp_path)
    ServeDeploySchema.model_validate(config)
    assert why_serve(config) is None
    [application] = config["applications"]
    parse(application["args"])
    [ingress] = application["deployments"]
    head, [workers] = cluster["headGroupSpec"], cluster["workerGroupSpecs"]
    assert head["rayStartParams"]["num-cpus"] == "0"
    assert ingress["max_replicas_per_node"] == 1
    scaled = ingress.get("autoscaling_config", {})
    assert (scaled.get("min_replicas") or ingress["num_replicas"]) == workers["replicas"] == workers["minReplicas"]
    assert scaled.get("max_replicas", workers["maxReplicas"]) == workers["maxReplicas"]
    for group in (head, workers):
        container = group["template"]["spec"]["containers"][0]
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        assert ports["metrics"] == int(group["rayStartParams"]["metrics-export-port"])
        for probe in ("readinessProbe", "livenessProbe"):
            assert container[probe]["grpc"]["port"] == int(group["rayStartParams"]["node-manager-port"])


@needs_helm
def test_a_pod_has_what_its_containers_mount(chart):
    for template in [template for document in chart for template in pods(document)]:
        volumes = {each["name"] for each in template["spec"].get("volumes", [])}
        used = {
            name for each in template["spec"]["containers"] for name in mounted({"volumeMounts": [], **each}).values()
        }
        # The autoscaler's container, which KubeRay adds to the head's pod.
        assert volumes - {"api"} == used


@needs_helm
def test_haproxy_is_beside_the_replicas_of_each_worker(chart, tmp_path):
    [application] = served(chart, tmp_path)["applications"]
    _, workers = pods(only(chart, "RayService"))
    ray, front = workers["spec"]["containers"]
    variables = named(ray)
    assert variables[slot.APPLICATION] == application["name"]
    assert named(front)[slot.FOLDER] == variables[slot.FOLDER]
    for container in (ray, front):
        # Ray's temporary folder: the front prints what replicas log there.
        assert mounted(container)[str(Path(variables[slot.FOLDER]).parent)] == "ray"
    assert front["image"] == ray["image"]
    assert COMMANDS["Serve"][front["command"][1]][0] == "scripts.serve.sidecar"
    ports = {port["name"]: port["containerPort"] for port in front["ports"]}
    assert ports == {"http": HTTP_PORT, "grpc": GRPC_PORT}
    # HAProxy has had its time before Ray ends, and Kubernetes waits for both.
    [ends] = re.findall(r"sleep (\d+)", ray["lifecycle"]["preStop"]["exec"]["command"][2])
    assert slot.NOTICE_S < int(ends) < workers["spec"]["terminationGracePeriodSeconds"]
    probe = front["readinessProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] + probe["timeoutSeconds"] < slot.NOTICE_S


@needs_helm
def test_values_arrive_where_they_are_used(everything, tmp_path):
    _, workers = pods(only(everything, "RayService"))
    ray, front = workers["spec"]["containers"]
    for variable in (CERTIFICATE, CERTIFICATE_KEY):
        assert mounted(front)[str(Path(named(front)[variable]).parent)] == "tls"
    assert front["readinessProbe"]["httpGet"]["scheme"] == "HTTPS"
    assert named(ray).items() >= EVERYTHING["env"].items()
    [application] = served(everything, tmp_path)["applications"]
    assert application["args"]["model_repository"] == "/models"
    assert mounted(ray)["/models"] == "models"
    assert application["args"]["ingress"]["max_request_bytes"] == 33554432
    assert application["deployments"][0]["user_config"] == EVERYTHING["userConfig"]
    assert {"secretRef": {"name": "bucket"}} in ray["envFrom"]
    assert workers["spec"]["imagePullSecrets"] == [{"name": "registry"}]
    assert (ray["image"], ray["imagePullPolicy"]) == ("ensemble:other", "Never")
    for field in ("nodeSelector", "tolerations"):
        assert workers["spec"][field] == EVERYTHING[field]
    # The keys are in a Secret that somebody else made.
    assert "Secret" not in {each["kind"] for each in everything}
    ingress = only(everything, "Ingress")["spec"]
    assert [rule["host"] for rule in ingress["rules"]] == ingress["tls"][0]["hosts"] == ["ensemble.example.com"]


@needs_helm
def test_keys_of_a_file_are_mounted_as_the_server_reads_them(tmp_path):
    keys.add(tmp_path / "keys", "client", None)
    chart = rendered({}, "--set-file", f"keys.file={tmp_path / 'keys'}")
    secret = only(chart, "Secret", "ensemble-keys")
    assert secret["stringData"] == {"keys": (tmp_path / "keys").read_text()}
    for template in pods(only(chart, "RayService")):
        assert {"name": "keys", "secret": {"secretName": "ensemble-keys"}} in template["spec"]["volumes"]
        assert mounted(template["spec"]["containers"][0])["/etc/ensemble"] == "keys"


@needs_helm
def test_the_state_of_the_head_is_in_the_redis_that_is_named():
    for values, address in (
        (EVERYTHING, "ensemble-redis:6379"),
        (CASES["a bucket, and another Redis"], "redis.example.com:6379"),
    ):
        chart = rendered(values)
        found = only(chart, "RayService")["spec"]["rayClusterConfig"]["gcsFaultToleranceOptions"]
        assert found["redisAddress"] == address
        assert ("Deployment" in {each["kind"] for each in chart}) == ("deploy" in values["redis"])


@needs_helm
def test_only_the_container_of_the_autoscaler_has_a_token_for_kubernetes(everything):
    cluster = only(everything, "RayService")["spec"]["rayClusterConfig"]
    assert cluster["enableInTreeAutoscaling"]
    head, workers = pods(only(everything, "RayService"))
    scaler = {each["name"] for each in cluster["autoscalerOptions"]["volumeMounts"]}
    assert scaler == {"ray", "tmp", "api"} <= {each["name"] for each in head["spec"]["volumes"]}
    for template in (head, workers):
        assert template["spec"]["automountServiceAccountToken"] is False
        assert all("api" not in mounted(each).values() for each in template["spec"]["containers"])


@needs_helm
def test_two_releases_are_apart(everything):
    names = [
        {(each["kind"], each["metadata"]["name"]) for each in chart}
        for chart in (everything, rendered(EVERYTHING, release="other"))
    ]
    assert not set.intersection(*names)


def test_a_server_in_one_container_may_start_as_long_as_it_allows_itself():
    runtime = yaml.safe_load(RUNTIME.read_text())
    [container] = runtime["spec"]["containers"]
    probe = container["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] >= READY_TIMEOUT_S
    assert probe["httpGet"] == container["livenessProbe"]["httpGet"]


@needs_helm
def test_the_switches_are_those_of_the_server():
    words = [word for line in (ROOT / "configs" / "serve.env").open() for word in shlex.split(line, comments=True)]
    switches = only(rendered(FEW), "ConfigMap", "ensemble-switches")
    assert switches["data"] == dict(word.split("=", 1) for word in words)


@needs_helm
def test_what_selects_pods_finds_them(everything):
    chart = everything
    labels = [template["metadata"]["labels"] for template in pods(only(chart, "RayService"))]
    budget = only(chart, "PodDisruptionBudget")["spec"]
    monitored = only(chart, "Service", "ensemble-metrics")
    # The other label is KubeRay's own.
    wanted = dict(budget["selector"]["matchLabels"])
    assert wanted.pop("ray.io/node-type") == "worker"
    policy = only(chart, "NetworkPolicy")["spec"]["podSelector"]["matchLabels"]
    for selector in (wanted, policy, monitored["spec"]["selector"]):
        assert all(selector.items() <= each.items() for each in labels)
    clients = only(chart, "Service")["spec"]
    assert clients["selector"] == budget["selector"]["matchLabels"]
    front = containers(pods(only(chart, "RayService"))[1])["front"]
    assert {port["targetPort"] for port in clients["ports"]} == {port["name"] for port in front["ports"]}
    headless = only(chart, "Service", "ensemble-headless")["spec"]
    assert (headless["clusterIP"], headless["selector"]) == ("None", clients["selector"])
    assert headless["ports"] == [port for port in clients["ports"] if port["name"] == "grpc"]
    monitor = only(chart, "ServiceMonitor")["spec"]
    assert monitor["selector"]["matchLabels"].items() <= monitored["metadata"]["labels"].items()
    assert monitor["endpoints"][0]["port"] == monitored["spec"]["ports"][0]["name"]
    [redis] = pods(only(chart, "Deployment", "ensemble-redis"))
    assert only(chart, "Service", "ensemble-redis")["spec"]["selector"].items() <= redis["metadata"]["labels"].items()
    assert not policy.items() <= redis["metadata"]["labels"].items()


@needs_helm
@pytest.mark.skipif(not shutil.which("promtool"), reason="no promtool: Debian's package prometheus")
def test_prometheus_takes_the_alerts_of_the_chart(everything, tmp_path):
    rule = only(everything, "PrometheusRule")
    assert rule["metadata"]["labels"]["release"] == "prometheus"
    (file := tmp_path / "alerts.yaml").write_text(yaml.safe_dump(rule["spec"]))
    done = subprocess.run(["promtool", "check", "rules", file], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    [group] = rule["spec"]["groups"]
    [known] = yaml.safe_load((ROOT / "configs" / "alerts.yaml").read_text())["groups"]
    for alert in group["rules"]:
        runbook = alert["annotations"].pop("runbook_url")
        assert runbook == f"https://docs.example.com/docs/troubleshooting/#{alert['alert'].lower()}"
    assert group == known


@needs_helm
def test_maintenance_takes_one_worker_at_a_time(chart):
    budget = only(chart, "PodDisruptionBudget")["spec"]
    # `maxUnavailable` blocks every eviction: the owner of the pods, a RayCluster, has no scale subresource.
    assert "maxUnavailable" not in budget
    [workers] = only(chart, "RayService")["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    assert budget["minAvailable"] == workers["replicas"] - 1


# What every manifest of Kubernetes has, and the parts of a pod that need no reason.
USUAL = {
    *("apiVersion", "kind", "metadata", "name", "labels", "spec", "selector", "matchLabels", "data", "template"),
    *("containers", "image", "command", "env", "value", "key", "port", "ports", "path", "protocol", "volumeMounts"),
    *("imagePullPolicy", "imagePullSecrets"),
}
# A field that has a reason explains those inside it.
PODS = {"securityContext", "volumes", "envFrom", "resources", "lifecycle", "topologySpreadConstraints", "env"}
PODS |= {"readinessProbe", "livenessProbe", "startupProbe", "volumeMounts", "ingress", "endpoints", "strategy"}
PODS |= {
    "authOptions",
    "supportedModelFormats",
    "gcsFaultToleranceOptions",
    "ports",
    "rules",
    "tls",
    "nodeSelector",
    "tolerations",
}


def reasoned(value):
    """The fields of a manifest that a comment explains."""
    if isinstance(value, list):
        for each in value:
            yield from reasoned(each)
    elif isinstance(value, dict):
        for name, each in value.items():
            yield name
            if name not in {"labels", "matchLabels", "data", "stringData", "annotations", "selector", "groups"} | PODS:
                yield from reasoned(each)


def explained():
    """The words of all comments, and the names of values: values.yaml explains each."""
    files = [RUNTIME, *(CHART / "templates").iterdir()]
    lines = [line for file in files for line in file.read_text().splitlines()]
    words = {word for line in lines for word in re.findall(r"[\w-]+", line.partition("# ")[2])}
    return words | set(re.findall(r"\w+(?=:)", (CHART / "values.yaml").read_text()))


@needs_helm
def test_comments_explain_every_field_that_is_not_usual(everything):
    fields = {name for document in (*everything, yaml.safe_load(RUNTIME.read_text())) for name in reasoned(document)}
    assert sorted(fields - USUAL - explained()) == []


def test_the_runtime_for_kserve_claims_the_protocols_whose_ports_it_declares():
    runtime = yaml.safe_load(RUNTIME.read_text())
    [container] = runtime["spec"]["containers"]
    assert runtime["spec"]["protocolVersions"] == ["v2"]
    assert [port["containerPort"] for port in container["ports"]] == [8000]


def test_the_chart_has_the_version_of_the_project():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == project["version"]


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
