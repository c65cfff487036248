"""Reads KServe's manifests: InferenceService, and InferenceGraph."""

import re
from pathlib import Path
from typing import Any

from ensemble_models.imports.found import CHANGED, LEFT_OUT, TAKEN, Found, ImportedMember, Part
from ensemble_models.imports.places import CODE, REPLICAS, RESOURCES, member_of, named, share_out
from scripts.errors import ScriptError

SERVICE, GRAPH = "InferenceService", "InferenceGraph"
# The word before a threshold in the condition of a step, which is of GJSON.
CONDITION = re.compile(r"<=?\s*(0?\.\d+|0|1(?:\.0+)?)\b")
# What a predictor had before `model`: one field for each framework.
FRAMEWORKS = ("model", "onnx", "triton", "tensorflow", "openvino", "pytorch", "sklearn", "xgboost", "mlflow")


def read(root: Path, manifests: list[dict[str, Any]]) -> Found:
    """Read the manifests of a file, whose models may be in its folder.

    Raises:
        ScriptError: they can't be served here.
    """
    found = Found("KServe's manifests")
    parts = [Part(found, str(each["kind"]), each) for each in manifests]
    services = {named(each): each for each in parts if each.get("kind", str) == SERVICE}
    graphs = [each for each in parts if each.get("kind", str) == GRAPH]
    if len(graphs) > 1:
        raise ScriptError(f"there are {len(graphs)} graphs; leave one {GRAPH} in a copy of the file")
    members = {name: _read_service(root, name, part) for name, part in services.items()}
    found.members = list(members.values())
    for graph in graphs:
        nodes, graph.name = graph.part("spec").part("nodes"), named(graph)
        found.members = _read_node(graph, nodes, "root", members, set())
    return found


def _read_service(root: Path, name: str, part: Part) -> ImportedMember:
    spec = part.part("spec")
    predictor = spec.part("predictor")
    spec.name = predictor.name = name
    spec.tell(LEFT_OUT, "transformer", CODE)
    spec.tell(LEFT_OUT, "explainer", "explanations are not served")
    framework = next((each for each in FRAMEWORKS if predictor.get(each, dict) is not None), None)
    if framework is None:
        raise ScriptError(f"{name}: its predictor runs an image of its own; call it as a member of kind open_inference")
    model = predictor.part(framework)
    model.name = name
    address = model.get("storageUri", str) or ""
    kind = str(model.part("modelFormat").get("name", str) or framework)
    protocol = model.get("protocolVersion", str) or ("v1" if kind in {"tensorflow", "sklearn", "xgboost"} else "v2")
    member = member_of(root, name, address)
    if member is None:
        space = part.part("metadata").get("namespace", str) or "default"
        url = part.part("status").get("url", str) or f"http://{name}-predictor.{space}"
        remote = "tensorflow_serving" if protocol == "v1" else "open_inference"
        member = ImportedMember(name, settings={"kind": remote, "url": url, "model": name})
        model.tell(CHANGED, "storageUri", f"stays on KServe: nothing of {address!r} is beside the manifest")
    else:
        model.tell(TAKEN, "storageUri", str(member.source))
    for field in ("minReplicas", "maxReplicas", "scaleTarget", "scaleMetric", "containerConcurrency"):
        predictor.tell(CHANGED, field, REPLICAS)
    predictor.tell(LEFT_OUT, "canaryTrafficPercent", "the revision before is not in the manifest; set `canary`")
    model.tell(CHANGED, "resources", RESOURCES)
    model.close("modelFormat", "protocolVersion", "runtime", "name")
    predictor.close(framework)
    spec.close("predictor")
    return member


def _read_node(
    graph: Part, nodes: Part, name: str, members: dict[str, ImportedMember], seen: set[str]
) -> list[ImportedMember]:
    if name in seen or nodes.get(name, dict) is None:
        what = "leads to itself, or two steps lead to it" if name in seen else "is absent"
        raise ScriptError(f"{graph.name}: the node {name!r} {what}")
    seen.add(name)
    node = nodes.part(name)
    router, steps = node.get("routerType", str) or "", node.parts("steps")
    found = [each for step in steps for each in _read_step(graph, nodes, step, members, seen)]
    note = graph.found.note
    if router == "Ensemble":
        note(graph.name, f"{name} Ensemble", CHANGED, "members side by side; the combiner makes one answer of theirs")
        return found
    if router == "Splitter":
        note(graph.name, f"{name} Splitter", CHANGED, "the smaller share is answered by a canary")
        return [share_out(found, [float(step.get("weight", int) or 0) for step in steps], f"{graph.name}: {name}")]
    if router == "Sequence":
        _read_sequence(graph, name, steps, found)
        return found
    raise ScriptError(
        f"{graph.name}: {name} is a {router or 'node without a routerType'}, which chooses a model by the request; "
        f"here a request names it, /v2/models/NAME/infer: name the models by --members"
    )


def _read_step(
    graph: Part, nodes: Part, step: Part, members: dict[str, ImportedMember], seen: set[str]
) -> list[ImportedMember]:
    if (node := step.get("nodeName", str)) is not None:
        return _read_node(graph, nodes, node, members, seen)
    service, url = step.get("serviceName", str), step.get("serviceUrl", str)
    if service in members:
        return [members[service]]
    name = step.get("name", str) or service or "member"
    where = url or f"http://{service}-predictor"
    graph.found.note(graph.name, name, CHANGED, f"stays on its server: {where}")
    return [ImportedMember(name, settings={"kind": "open_inference", "url": where, "model": service or name})]


def _read_sequence(graph: Part, name: str, steps: list[Part], found: list[ImportedMember]) -> None:
    """Make a sequence whose later steps wait for an unsure answer a cascade.

    Raises:
        ScriptError: a step is called always, or its condition has no threshold.
    """
    exits = [CONDITION.search(step.get("condition", str) or "") for step in steps[1:]]
    if len(found) != len(steps) or not exits or not all(exits):
        raise ScriptError(
            f"{graph.name}: {name} is a Sequence whose conditions have no threshold, such as confidence<0.9; name its "
            f"models by --members, and let `ensemble tune-cascade` choose thresholds"
        )
    order = [each.name for each in found]
    thresholds = [float(each[1]) for each in exits if each is not None]
    graph.found.sections["ensemble"] = {"cascade": {"order": order, "exit_at": thresholds}}
    note = "a cascade by the combined probability: choose anew by tune-cascade"
    graph.found.note(graph.name, f"{name} Sequence", CHANGED, note)
