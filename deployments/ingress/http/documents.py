"""The OpenAPI document of the HTTP interface, made of the routes' typed models, and the page that shows it."""

import re
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, Response

from deployments.contract.errors import EnsembleError
from deployments.ingress.routes import REFERENCE, Route, Routes, encoded
from deployments.observe.observer import Call

# The group of the paths of no protocol but this application's; a protocol's stands before the colon of a summary.
OWN = "This application"
PACKAGE = "ensemble-serving"
# The page, of Swagger UI's own files: nothing is fetched from elsewhere.
ASSETS = {"swagger-ui-bundle.js": "text/javascript", "swagger-ui.css": "text/css"}
KEY = {"type": "http", "scheme": "bearer", "description": "Needed where the configuration has keys."}
PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>ensemble</title>
<link rel="icon" href="data:,"><link rel="stylesheet" href="/docs/swagger-ui.css"></head>
<body><div id="page"></div><script src="/docs/swagger-ui-bundle.js"></script>
<script>SwaggerUIBundle({url: "/openapi.json", dom_id: "#page"})</script></body></html>
"""


def routes(documented: Routes) -> Routes:
    """Serve the document of these routes, without routes that are off, and its own routes: the page and its files."""

    @cache
    def made(paths: frozenset[str]) -> dict[str, Any]:
        return openapi({path: route for path, route in (documented | own).items() if path in paths})

    async def document(_: Request, _call: Call) -> Response:
        return encoded(made(frozenset(path for path, route in (documented | own).items() if route.is_on())))

    async def page(_: Request, _call: Call) -> Response:
        return HTMLResponse(PAGE)

    own = {
        "/openapi.json": Route("GET", document, "This document", (dict[str, Any],), open=True),
        "/docs": Route("GET", page, "This document, to read and to try", open=True),
        **{f"/docs/{name}": Route("GET", _asset, "", open=True) for name in ASSETS},
    }
    return own


def openapi(documented: Routes) -> dict[str, Any]:
    """Describe routes as an OpenAPI document, https://spec.openapis.org/oas/v3.1.0."""
    listed = {path: route for path, route in documented.items() if route.summary}
    models = {model for route in listed.values() for model in _models(route)}
    _, components = msgspec.json.schema_components(sorted(models, key=str), ref_template=REFERENCE)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "ensemble",
            "version": release(),
            "description": "An ensemble of image classifiers on CPUs.",
        },
        "paths": {path: {route.method.lower(): _operation(path, route)} for path, route in listed.items()},
        "components": {"schemas": components, "securitySchemes": {"key": KEY}},
    }


@cache
def release() -> str:
    """Return the version of the server: its package's, or `0` where only its files are there."""
    try:
        return metadata.version(PACKAGE)
    except metadata.PackageNotFoundError:
        return "0"


@cache
def _assets() -> Path:
    """Find the folder of Swagger UI's files."""
    spec = find_spec("fastapi_offline")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "static"


async def _asset(request: Request, _: Call) -> Response:
    name = request.scope["path"].rpartition("/")[2]
    return FileResponse(_assets() / name, media_type=ASSETS[name])


def _models(route: Route) -> list[Any]:
    return [route.style.model, *route.answers, *(model for model in route.body.values() if not isinstance(model, dict))]


def _schema(model: Any) -> dict[str, Any]:
    if isinstance(model, dict):
        return model
    [schema], _ = msgspec.json.schema_components([model], ref_template=REFERENCE)
    return schema


def _operation(path: str, route: Route) -> dict[str, Any]:
    protocol, _, _ = route.summary.rpartition(": ")
    operation: dict[str, Any] = {
        "summary": route.summary,
        "operationId": _identifier(path, route),
        "tags": [protocol or OWN],
    }
    if not route.open:
        # With or without.
        operation["security"] = [{}, {"key": []}]
    if parameters := [*_in_path(path), *(_parameters(route.query) if route.query else [])]:
        operation["parameters"] = parameters
    if route.body:
        content = {media_type: {"schema": _schema(model)} for media_type, model in route.body.items()}
        operation["requestBody"] = {"required": True, "content": content}
    answers = [_schema(model) for model in route.answers]
    schema = {"schema": answers[0] if len(answers) == 1 else {"oneOf": answers}}
    content = {"content": {"application/json": schema}} if answers else {}
    operation["responses"] = {"200": {"description": "OK", **content}, **_failures(route)}
    return operation


def _identifier(path: str, route: Route) -> str:
    return "_".join([route.method.lower(), *(part.strip("{}").replace(".", "_") for part in path.split("/") if part)])


def _in_path(path: str) -> list[dict[str, Any]]:
    schema = {"type": "string", "pattern": "^[!-~]{1,200}$"}
    return [{"name": name, "in": "path", "required": True, "schema": schema} for name in re.findall(r"\{(\w+)\}", path)]


def _parameters(query: type[msgspec.Struct]) -> list[dict[str, Any]]:
    [_], components = msgspec.json.schema_components([query], ref_template=REFERENCE)
    properties = components[query.__name__]["properties"]
    return [
        {
            "name": name,
            "in": "query",
            "required": False,
            "description": _description(schema),
            "schema": _without_null(schema),
        }
        for name, schema in properties.items()
    ]


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """Remove null from an option's schema: a client leaves an option out of the query instead."""
    kinds = [kind for kind in schema.get("anyOf", [schema]) if kind.get("type") != "null"]
    return {name: value for name, value in kinds[0].items() if name != "description"}


def _description(schema: dict[str, Any]) -> str:
    return str(next(kind["description"] for kind in [schema, *schema.get("anyOf", [])] if "description" in kind))


def _failures(route: Route) -> dict[str, Any]:
    by_status: dict[int, list[type[EnsembleError]]] = {}
    for error in route.failures:
        by_status.setdefault(route.style.status(error), []).append(error)
    schema = _schema(route.style.model)
    return {
        str(status): {
            "description": "; ".join(f"`{error.code}`: {(error.__doc__ or '').strip()}" for error in errors),
            "content": {"application/json": {"schema": schema}},
        }
        for status, errors in sorted(by_status.items())
    }
