"""The OpenAPI document of the HTTP interface, and the page that shows it."""

from __future__ import annotations

from typing import Any

from fastapi.openapi.docs import get_swagger_ui_html


def _schema(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


def _json(description: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def _query(name: str, schema: dict[str, Any], description: str) -> dict[str, Any]:
    return {"name": name, "in": "query", "required": False, "schema": schema, "description": description}


STRING = {"type": "string"}
INTEGER = {"type": "integer"}
NUMBER = {"type": "number"}
ERRORS = {
    "400": "Not an image, or truncated",
    "413": "Too large, in bytes or in pixels",
    "415": "A content type that is no image",
    "422": "A bad parameter",
    "503": "As many images in flight as admitted; Retry-After says when to try again",
    "504": "Past its deadline",
}


def _errors(schema: str) -> dict[str, Any]:
    return {status: _json(description, _ref(schema)) for status, description in ERRORS.items()}


TENSOR = _schema(
    name=STRING, datatype=STRING, shape={"type": "array", "items": INTEGER}, data={"type": "array", "items": {}}
)
PATHS: dict[str, Any] = {
    "/classify": {
        "post": {
            "summary": "Classify one image, or each image of a form",
            "operationId": "classify",
            "parameters": [
                _query("top_k", {"type": "integer", "minimum": 1, "default": 1}, "classes to list"),
                _query("members", {"type": "boolean", "default": False}, "list each member's own answer"),
                _query("timeout_ms", {"type": "integer", "minimum": 1, "maximum": 3_600_000}, "deadline from now, ms"),
            ],
            "requestBody": {
                "required": True,
                "content": {
                    "image/*": {"schema": {"type": "string", "format": "binary"}},
                    "multipart/form-data": {
                        "schema": _schema(
                            image={"type": "array", "items": {"type": "string", "format": "binary"}, "minItems": 1}
                        )
                    },
                },
            },
            "responses": {
                "200": _json(
                    "The classification; for several images, each one's or its error, in order",
                    {"oneOf": [_ref("Classification"), _ref("Results")]},
                ),
                **_errors("ErrorAnswer"),
            },
        }
    },
    "/v2/models/ensemble/infer": {
        "post": {
            "summary": "Open Inference Protocol: classify base64-encoded images",
            "operationId": "infer",
            "requestBody": {
                "required": True,
                "content": {"application/json": {"schema": _schema(inputs={"type": "array", "items": _ref("Tensor")})}},
            },
            "responses": {
                "200": _json(
                    "The outputs label, index and probabilities",
                    _schema(
                        model_name=STRING, model_version=STRING, outputs={"type": "array", "items": _ref("Tensor")}
                    ),
                ),
                **_errors("ProtocolError"),
            },
        }
    },
}
for path, summary in {
    "/v2": "Open Inference Protocol: the server",
    "/v2/health/live": "Open Inference Protocol: the process answers",
    "/v2/health/ready": "Open Inference Protocol: every member has answered once since the start",
    "/v2/models/ensemble": "Open Inference Protocol: the model's input and outputs",
    "/v2/models/ensemble/ready": "Open Inference Protocol: the model is ready",
}.items():
    answers = {"200": _json("OK", {"type": "object"})}
    if path.endswith("ready"):
        answers["503"] = _json("Not yet", _ref("ProtocolError"))
    PATHS[path] = {"get": {"summary": summary, "responses": answers}}

CLASS_PROBABILITY = _schema(label=STRING, index=INTEGER, probability=NUMBER)
OPENAPI: dict[str, Any] = {
    "openapi": "3.1.0",
    "info": {"title": "ensemble", "version": "1", "description": "An ensemble of image classifiers on CPUs."},
    "paths": PATHS,
    "components": {
        "schemas": {
            "ClassProbability": CLASS_PROBABILITY,
            "Classification": {
                "type": "object",
                "properties": {
                    **CLASS_PROBABILITY["properties"],
                    "top": {"type": "array", "items": _ref("ClassProbability")},
                    "members": {"type": "object", "additionalProperties": _ref("ClassProbability")},
                    "model_versions": {"type": "object", "additionalProperties": INTEGER},
                    "trace_id": {"type": "string", "pattern": "^[0-9a-f]{32}$"},
                },
                "required": ["label", "index", "probability", "top", "model_versions", "trace_id"],
            },
            "Results": _schema(
                results={"type": "array", "items": {"oneOf": [_ref("Classification"), _ref("ErrorAnswer")]}}
            ),
            "ErrorAnswer": _schema(error=_schema(code=STRING, message=STRING)),
            "ProtocolError": _schema(error=STRING),
            "Tensor": TENSOR,
        }
    },
}
DOCS = bytes(get_swagger_ui_html(openapi_url="/openapi.json", title="ensemble").body).decode()
