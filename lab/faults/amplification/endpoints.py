"""What can be asked: the routes of the OpenAPI document that a server publishes, and the methods of the protos."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from google.protobuf.descriptor import Descriptor

from deployments.protocol.services import SERVICES

# Paths that the document leaves out, each with the listed one that it is another name of, if it is.
UNLISTED = {
    **{
        f"/v2/models/{model}{rest}": f"/v2/models/ensemble{rest}"
        for model in ("ensemble/versions/1", "resnet", "resnet/versions/1")
        for rest in ("", "/ready", "/config", "/stats", "/infer")
    },
    **{
        f"/v1/models/ensemble/versions/{version}{rest}": f"/v1/models/ensemble{rest}"
        for version in "01"
        for rest in ("", "/metadata", ":predict", ":classify")
    },
    "/": "",
    "/docs/swagger-ui-bundle.js": "",
    "/docs/swagger-ui.css": "",
    "/-/healthz": "",
    "/-/routes": "",
    "/nothing": "",
}
# In place of a name in a path: nobody's, so that no member is unloaded.
NOBODY = "nobody"


@dataclass(frozen=True)
class Endpoint:
    """What a request goes to.

    Attributes:
        name: method and path, or the path of a gRPC method.
        method: of HTTP; empty for gRPC.
        path: of either, names filled in.
        schema: of the JSON body, if one is taken.
        schemas: what `schema` refers to, by name.
        takes_images: whether a body may be an image or a form.
        message: of a gRPC method's request.
    """

    name: str
    method: str
    path: str
    schema: Mapping[str, Any] | None = None
    schemas: Mapping[str, Any] | None = None
    takes_images: bool = False
    message: Descriptor | None = None


def routes(document: Mapping[str, Any]) -> list[Endpoint]:
    """The routes of an OpenAPI document, and those that it leaves out."""
    schemas = document["components"]["schemas"]
    listed = {path: next(iter(operations.items())) for path, operations in document["paths"].items()}
    others = {path: listed.get(same, ("get", {})) for path, same in UNLISTED.items() if path not in listed}
    return [_route(path, method, operation, schemas) for path, (method, operation) in (listed | others).items()]


def _route(path: str, method: str, operation: Mapping[str, Any], schemas: Mapping[str, Any]) -> Endpoint:
    content = operation.get("requestBody", {}).get("content", {})
    filled = path
    for parameter in operation.get("parameters", ()):
        filled = filled.replace("{" + parameter["name"] + "}", NOBODY)
    return Endpoint(
        name=f"{method.upper()} {path}",
        method=method.upper(),
        path=filled,
        schema=content.get("application/json", {}).get("schema"),
        schemas=schemas,
        takes_images="image/*" in content,
    )


def methods() -> list[Endpoint]:
    """The methods of every gRPC service."""
    return [
        Endpoint(f"/{service.full_name}/{method.name}", "", f"/{service.full_name}/{method.name}", message=asked)
        for service in SERVICES
        for method in service.methods
        for asked in [method.input_type]
    ]
