"""The page on the fields of a configuration, made of their schemas; and the JSON schema of a whole YAML file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from ray.serve.schema import ServeDeploySchema

from graph.config import EnsembleConfig
from lab.reference.pages import code, first_paragraph, kind, prose, table
from scripts.configuration import IMPORT_PATH

FILE = "ensemble.schema.json"
DEFINITIONS = "$defs"
DEFAULT_KIND = "openvino"
UNITS = {
    "_ms": "ms", "_s": "s", "_bytes": "bytes", "_pixels": "pixels", "share": "share, 0 to 1", "_rate": "bytes/s",
    "_batch_size": "images", "max_in_flight": "images", "max_parts": "images", "window": "answers", "top_k": "classes",
}  # fmt: skip
HEAD = ("field", "type", "default", "unit", "what it sets")


def page() -> str:
    """Write the page: the fields of `args`, and then each section's, in the order in which the fields name them."""
    schema = arguments()
    definitions = schema[DEFINITIONS]
    parts = ["## args\n", _fields(schema, definitions)]
    for name, path in _sections(schema, definitions):
        parts += [f"## {path}\n", f"{first_paragraph(definitions[name]['description'])}\n"]
        parts.append(_fields(definitions[name], definitions))
    return "\n".join(parts)


def _fields(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> str:
    required = schema.get("required", ())
    rows = []
    for name, field in schema["properties"].items():
        described = field.get("description") or " ".join(
            first_paragraph(definitions[each].get("description")) for each in _referred(field)
        )
        default = "required" if name in required else code(_default(field))
        rows.append((code(name), _field_kind(field), default, _unit(name), prose(described)))
    return table(HEAD, rows)


def _sections(schema: Mapping[str, Any], definitions: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    """Yield the schemas that fields refer to, each once, and the path of the field in `args`."""
    for name, path in dict(_below(schema, definitions, above)).items():
        yield name, path
        if not path.startswith("members[]"):
            yield from _sections(definitions[name], definitions, f"{path}.")
    if not above:
        member = definitions["OpenVino"]
        yield from ((name, path) for name, path in _below(member, definitions, "members[]."))


def _below(schema: Mapping[str, Any], definitions: Mapping[str, Any], above: str) -> Iterator[tuple[str, str]]:
    for field, value in schema["properties"].items():
        for name in _referred(value):
            yield name, _path(f"{above}{field}", name, definitions)


def _path(field: str, name: str, definitions: Mapping[str, Any]) -> str:
    kind = definitions[name]["properties"].get("kind", {}).get("const")
    return f"{field}[] of kind {kind}" if kind else field


def _referred(field: Mapping[str, Any]) -> list[str]:
    """Return the names of the schemas that a field's type names."""
    inner = [field, *field.get("anyOf", ()), *field.get("items", {}).get("oneOf", ())]
    return [each["$ref"].rpartition("/")[2] for each in inner if "$ref" in each]


def _default(field: Mapping[str, Any]) -> str:
    if _referred(field) or "default" not in field or field["default"] is None:
        return ""
    return json.dumps(field["default"])


def _field_kind(field: Mapping[str, Any]) -> str:
    return "list of sections, by kind" if len(_referred(field)) > 1 else kind(field, lambda name: "section")


def _unit(name: str) -> str:
    return next((unit for ending, unit in UNITS.items() if name.endswith(ending)), "")


def arguments() -> dict[str, Any]:
    """Return the schema of `args`, with its definitions in `$defs`, and with the sections of installed features."""
    schema = EnsembleConfig.model_json_schema()
    # Not this machine's folder.
    repository = schema["properties"]["model_repository"]
    repository["type"] = "string"
    repository.pop("default", None)
    for definition in schema[DEFINITIONS].values():
        # Without a kind a member is OpenVINO's, and no other.
        if definition["properties"].get("kind", {}).get("const", DEFAULT_KIND) != DEFAULT_KIND:
            definition["required"] = ["kind", *definition.get("required", [])]
    return schema


def document() -> dict[str, Any]:
    """Make the schema of a Serve config file: Serve's own, with the arguments of this project's applications."""
    ours, serve = arguments(), ServeDeploySchema.model_json_schema()
    definitions = {**serve.pop(DEFINITIONS), **ours.pop(DEFINITIONS), "Arguments": ours}
    application = definitions["ServeApplicationSchema"]
    # As scripts/serve_schema.py reads them: Serve itself ignores unknown fields.
    for definition in (serve, *definitions.values()):
        if "properties" in definition:
            definition.setdefault("additionalProperties", False)
    application["if"] = {"properties": {"import_path": {"const": IMPORT_PATH}}}
    application["then"] = {"properties": {"args": {"$ref": f"#/{DEFINITIONS}/Arguments"}}}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **serve, DEFINITIONS: definitions}


def schema() -> str:
    """Write the schema of the file as JSON, a line for each definition, so that a change is seen in its place."""
    whole = document()
    lines = [f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in sorted(whole.pop(DEFINITIONS).items())]
    return f'{json.dumps(whole)[:-1]}, "{DEFINITIONS}": {{\n' + ",\n".join(lines) + "\n}}\n"
