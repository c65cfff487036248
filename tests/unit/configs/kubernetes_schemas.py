"""Writes the part of the published schemas that the chart uses, by which the ordinary tests check what Helm renders.

    python -m tests.unit.configs.kubernetes_schemas FILE...

The files are the CustomResourceDefinitions of KubeRay (ray-operator/config/crd/bases/ray.io_rayservices.yaml), KServe
(config/crd/full/serving.kserve.io_clusterservingruntimes.yaml) and the Prometheus operator
(example/prometheus-operator-crd/monitoring.coreos.com_servicemonitors.yaml and _prometheusrules.yaml), and Kubernetes'
own api/openapi-spec/swagger.json. Together they are megabytes; the chart uses some hundred of their fields. To be run
when the chart has a field that it had not, and for newer versions.
"""

import json
import sys
from pathlib import Path

import yaml

from tests.conftest import ROOT
from tests.kubernetes.chart import RUNTIME, rendered

SCHEMAS = ROOT / "tests" / "unit" / "configs" / "kubernetes.json"
EVERYTHING = yaml.safe_load((ROOT / "tests" / "unit" / "configs" / "kubernetes_values.yaml").read_text())
KEPT = ("type", "enum", "pattern", "minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems", "required")
ROOT_FIELDS = {"apiVersion": {"type": "string"}, "kind": {"type": "string"}}


def documents():
    """What the chart and the runtime for KServe hold, with few and with all values, by `apiVersion` and `kind`."""
    found = {}
    few = {"keys": {"file": "digests"}}
    for document in (*rendered(few), *rendered(EVERYTHING), yaml.safe_load(RUNTIME.read_text())):
        found.setdefault(f"{document['apiVersion']} {document['kind']}", []).append(document)
    return found


def published(files):
    """The schemas in these files, by `apiVersion` and `kind`; those of a swagger.json with what they refer to."""
    for file in map(Path, files):
        if file.suffix == ".json":
            definitions = json.loads(file.read_text())["definitions"]
            for schema in definitions.values():
                for known in schema.get("x-kubernetes-group-version-kind", []):
                    version = "/".join(filter(None, (known["group"], known["version"])))
                    yield f"{version} {known['kind']}", schema, definitions
        else:
            definition = yaml.safe_load(file.read_text())["spec"]
            for version in definition["versions"]:
                name = f"{definition['group']}/{version['name']} {definition['names']['kind']}"
                yield name, version["schema"]["openAPIV3Schema"], {}


def used(schema, values, definitions):
    """A schema without what these values do not use; fields that it does not know are errors."""
    if "$ref" in schema:
        schema = definitions[schema["$ref"].rpartition("/")[2]]
    if schema.get("x-kubernetes-int-or-string") or schema.get("format") == "int-or-string":
        return {"type": ["integer", "string"]}
    if "Quantity" in schema.get("description", "")[:20]:
        return {"type": ["number", "string"]}
    kept = {name: schema[name] for name in KEPT if name in schema}
    objects, lists = [v for v in values if isinstance(v, dict)], [v for v in values if isinstance(v, list)]
    if "properties" in schema:
        names = sorted({name for value in objects for name in value} & set(schema["properties"]))
        each = {n: [value[n] for value in objects if n in value] for n in names}
        kept["properties"] = {n: used(schema["properties"][n], each[n], definitions) for n in names}
        kept["additionalProperties"] = False
    elif isinstance(schema.get("additionalProperties"), dict):
        inner = [v for value in objects for v in value.values()]
        kept["additionalProperties"] = used(schema["additionalProperties"], inner, definitions)
    if "items" in schema and lists:
        kept["items"] = used(schema["items"], [v for value in lists for v in value], definitions)
    return kept


def main():
    manifests, written = documents(), {}
    for name, schema, definitions in published(sys.argv[1:]):
        if name in manifests:
            written[name] = used(schema, manifests[name], definitions)
            # A CustomResourceDefinition says of metadata that it is an object, and nothing more.
            written[name]["properties"] |= ROOT_FIELDS | {"metadata": {"type": "object"}}
    if missing := manifests.keys() - written:
        sys.exit(f"no schema of {', '.join(sorted(missing))} in these files")
    lines = [f"{json.dumps(name)}: {json.dumps(written[name], sort_keys=True)}" for name in sorted(written)]
    SCHEMAS.write_text("{" + ",\n".join(lines) + "}\n")


if __name__ == "__main__":
    main()
