"""Reads the SeldonDeployment of Seldon Core 1: the graph of the pipeline that this application reproduces."""

from itertools import pairwise
from pathlib import Path
from typing import Any

from ensemble_models.imports.found import CHANGED, LEFT_OUT, TAKEN, Found, ImportedMember, Part
from ensemble_models.imports.places import CODE, REPLICAS, RESOURCES, member_of, named, share_out
from scripts.errors import ScriptError

DEPLOYMENT = "SeldonDeployment"
MOST_DEPTH = 32


def read(root: Path, manifests: list[dict[str, Any]]) -> Found:
    """Read the manifest of a file, whose models may be in its folder.

    Raises:
        ScriptError: it can't be served here.
    """
    found = Found("Seldon's SeldonDeployment")
    parts = [Part(found, DEPLOYMENT, each) for each in manifests if each.get("kind") == DEPLOYMENT]
    if len(parts) != 1:
        raise ScriptError(f"there are {len(parts)} of {DEPLOYMENT}; leave one in a copy of the file")
    whole = parts[0]
    spec, name = whole.part("spec"), named(whole)
    spec.name = whole.name = name
    predictors = spec.parts("predictors")
    main = [each for each in predictors if not each.get("shadow", bool)]
    if not main:
        raise ScriptError(f"{name} has no predictor that answers")
    main.sort(key=lambda each: -(each.get("traffic", int) or 0))
    found.members = _read_predictor(root, main[0])
    for other in main[1:]:
        note = "another graph for a share of the images; a member's `canary` is another version of it"
        found.note(str(other.get("name", str)), "traffic", LEFT_OUT, note)
    for shadow in (each for each in predictors if each.get("shadow", bool)):
        found.members += _read_shadow(root, shadow, {each.name for each in found.members})
    for field in ("annotations", "protocol", "transport", "oauth_key", "oauth_secret", "name"):
        spec.tell(LEFT_OUT, field, "every protocol is answered; keys are in `access`")
    spec.close("predictors")
    return found


def _read_predictor(root: Path, predictor: Part) -> list[ImportedMember]:
    predictor.name = str(predictor.get("name", str))
    addresses = _addresses(predictor)
    members = _read_unit(root, predictor.part("graph"), addresses, 0)
    predictor.tell(CHANGED, "replicas", REPLICAS)
    predictor.tell(LEFT_OUT, "svcOrchSpec", "there is no orchestrator: the ingress calls the members")
    predictor.tell(LEFT_OUT, "explainer", "explanations are not served")
    predictor.close("name", "graph", "componentSpecs", "traffic", "shadow", "labels", "annotations")
    return members


def _read_shadow(root: Path, predictor: Part, taken: set[str]) -> list[ImportedMember]:
    """Make shadows of the models of a predictor that answers nobody."""
    members = _read_predictor(root, predictor)
    for each in members:
        each.settings |= {"role": "shadow", "share": 1.0}
        if each.name in taken:
            each.name = f"{each.name}-shadow"
        predictor.found.note(each.name, "shadow", CHANGED, "role: shadow")
    return members


def _addresses(predictor: Part) -> dict[str, str]:
    """Return where the containers' arguments say that models are, by the models' names."""
    found = {}
    for component in predictor.parts("componentSpecs"):
        component.tell(CHANGED, "hpaSpec", REPLICAS)
        component.tell(CHANGED, "replicas", REPLICAS)
        for container in component.part("spec").parts("containers"):
            container.tell(CHANGED, "resources", RESOURCES)
            words = [
                each
                for field in ("command", "args")
                for each in container.get(field, list) or []
                if isinstance(each, str)
            ]
            words = [word for each in words for word in each.replace("=", " ").split()]
            given = dict(pairwise(words))
            if "--model_name" in given and "--model_path" in given:
                found[given["--model_name"]] = given["--model_path"]
    return found


def _read_unit(root: Path, unit: Part, addresses: dict[str, str], depth: int) -> list[ImportedMember]:
    if depth > MOST_DEPTH:
        raise ScriptError(f"{unit.name}: units are nested more than {MOST_DEPTH} times")
    unit.name = unit.get("name", str) or "unnamed"
    kind = unit.get("type", str) or ("MODEL" if unit.get("implementation", str) else "")
    below = [each for child in unit.parts("children") for each in _read_unit(root, child, addresses, depth + 1)]
    parameters = {str(each.get("name", str)): each.get("value", str) or "" for each in unit.parts("parameters")}
    if kind == "ROUTER":
        if unit.get("implementation", str) != "RANDOM_ABTEST":
            raise ScriptError(f"{unit.name} is a ROUTER whose code chooses a model; name the models by --members")
        try:
            share = float(parameters.get("ratioA", "0.5"))
        except ValueError:
            raise ScriptError(f"{unit.name}: ratioA is {parameters['ratioA'][:40]!r}, and no share") from None
        unit.tell(CHANGED, "type", "the smaller share is answered by a canary")
        return [share_out(below, [share, 1 - share], unit.name)]
    if kind == "COMBINER":
        unit.tell(CHANGED, "type", "the mean of the members' probabilities; another one is `combiner.method`")
    elif kind in {"TRANSFORMER", "OUTPUT_TRANSFORMER"}:
        unit.tell(LEFT_OUT, "type", CODE)
    else:
        below = [_read_model(root, unit, parameters, addresses), *below]
    unit.close("name", "children", "type", "endpoint", "logger")
    return below


def _read_model(root: Path, unit: Part, parameters: dict[str, str], addresses: dict[str, str]) -> ImportedMember:
    model = parameters.get("model_name", unit.name)
    address = unit.get("modelUri", str) or parameters.get("model_uri") or addresses.get(model, model)
    member = member_of(root, unit.name, address)
    if member is not None:
        unit.found.note(unit.name, "model", TAKEN, str(member.source))
        if "model_output" in parameters:
            member.flags["--output"] = (parameters["model_output"],)
        return member
    endpoint = unit.part("endpoint")
    host, port = endpoint.get("service_host", str) or unit.name, endpoint.get("service_port", int) or 9000
    where = parameters.get("grpc_endpoint") or f"{host}:{port}"
    is_rest = "grpc_endpoint" not in parameters and endpoint.get("type", str) == "REST"
    settings = {"url": f"{'http' if is_rest else 'grpc'}://{where}", "model": model}
    is_tensorflow = "grpc_endpoint" in parameters or unit.get("implementation", str) == "TENSORFLOW_SERVER"
    settings["kind"] = "tensorflow_serving" if is_tensorflow else "open_inference"
    settings |= {name: parameters[f"model_{name}"] for name in ("input", "output") if f"model_{name}" in parameters}
    unit.found.note(unit.name, "model", CHANGED, f"stays on its server, {where}: nothing of {address!r} is here")
    return ImportedMember(unit.name, settings=settings)
