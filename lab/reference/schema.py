"""The JSON schema of the configuration, and of a whole YAML file for editors."""

from __future__ import annotations

import json
from typing import Any

from ray.serve.schema import ServeDeploySchema

from graph.config import EnsembleConfig
from scripts.configuration import IMPORT_PATH

FILE = "ensemble.schema.json"
DEFINITIONS = "$defs"
DEFAULT_KIND = "openvino"


def arguments() -> dict[str, Any]:
    """The schema of `args`, with its definitions in `$defs`."""
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
    """The schema of a Serve config file: Serve's own, and the arguments where an application is this project's."""
    ours, serve = arguments(), ServeDeploySchema.model_json_schema()
    definitions = {**serve.pop(DEFINITIONS), **ours.pop(DEFINITIONS), "Arguments": ours}
    application = definitions["ServeApplicationSchema"]
    application["if"] = {"properties": {"import_path": {"const": IMPORT_PATH}}}
    application["then"] = {"properties": {"args": {"$ref": f"#/{DEFINITIONS}/Arguments"}}}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **serve, DEFINITIONS: definitions}


def text() -> str:
    """The schema of the file as JSON, a line for each definition, so that a change is seen where it is."""
    whole = document()
    lines = [f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in sorted(whole.pop(DEFINITIONS).items())]
    return f'{json.dumps(whole)[:-1]}, "{DEFINITIONS}": {{\n' + ",\n".join(lines) + "\n}}\n"
