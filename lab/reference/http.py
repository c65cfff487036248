"""The page on HTTP, made of the OpenAPI document of a server with every feature."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from deployments.contract.batch import Batch
from deployments.ingress.http import documents
from deployments.ingress.http.server import documented
from deployments.ingress.ingress import Ingress
from deployments.ingress.protocol import Extension, Service
from deployments.ingress.routes import Routes
from deployments.ingress.settings import IngressSettings
from deployments.observe.observer import Observer
from ensemble_page import live
from ensemble_page.stats import Stats
from ensemble_rollout.feedback import labels as feedback
from ensemble_rollout.loading import feature as loading
from ensemble_rollout.loading.feature import ModelControl
from lab.reference.pages import code, first_paragraph, kind, table

# Of an error, in the description of a status.
CODE = re.compile(r"`\w+`(?=: )")


def page() -> str:
    """Write the page: a row for each path, the paths with query, body and errors, and the fields of bodies."""
    document = _document()
    paths, schemas = document["paths"], document["components"]["schemas"]
    listed = [(path, method.upper(), operation) for path, each in paths.items() for method, operation in each.items()]
    rows = [(method, code(path), operation["summary"]) for path, method, operation in listed]
    parts = ["## Paths\n", table(("method", "path", "what it does"), rows)]
    parts += [_operation(path, method, operation) for path, method, operation in listed]
    return "\n".join([*parts, "## Fields of bodies\n", *_bodies(schemas)])


def _document() -> dict[str, Any]:
    """Make the OpenAPI document of routes that receive no requests."""

    async def graph(batch: Batch[Any]) -> Batch[Any]:
        return batch

    ingress = Ingress.of_images(graph, IngressSettings(), 0, Observer())
    service = Service(ingress, (), lambda: True, extensions=[_Features()])
    return documents.openapi(documented(service))


class _Features(Extension):
    """The paths of every feature."""

    def routes(self, service: Service) -> Routes:
        """Return the routes; nobody calls them."""
        control = ModelControl.__new__(ModelControl)
        figures = live.routes(service, Stats(), "", "")
        return feedback.routes(service.ingress, _nobody) | loading.routes(service.ingress, control) | figures


async def _nobody(*_: Any) -> None:
    """Take no label."""


def _operation(path: str, method: str, operation: Mapping[str, Any]) -> str:
    parts = [f"## {method} {path}\n", f"{operation['summary']}.\n"]
    if "security" not in operation:
        parts.append("It needs no API key.\n")
    if parameters := operation.get("parameters"):
        rows = [
            (code(each["name"]), each["in"], kind(each["schema"], code), each.get("description", ""))
            for each in parameters
        ]
        parts.append(table(("parameter", "in", "type", "meaning"), rows))
    if body := operation.get("requestBody"):
        kinds = [f"{code(media_type)} ({kind(each['schema'], code)})" for media_type, each in body["content"].items()]
        parts.append(f"Body: {', '.join(kinds)}.\n")
    answer = operation["responses"]["200"].get("content", {}).get("application/json", {})
    parts.append(
        f"Answer: {kind(answer['schema'], code) if answer else 'no JSON'}. Errors: {_errors(operation['responses'])}.\n"
    )
    return "\n".join(parts)


def _bodies(schemas: Mapping[str, Any]) -> Iterator[str]:
    """Write the fields of each schema that describes its fields."""
    for name, schema in schemas.items():
        fields = schema.get("properties", {})
        if any("description" in field for field in fields.values()):
            rows = [(code(field), kind(each, code), each.get("description", "")) for field, each in fields.items()]
            described = first_paragraph(schema["description"])
            yield f"### {name}\n\n{described}\n\n{table(('field', 'type', 'content'), rows)}"


def _errors(responses: Mapping[str, Any]) -> str:
    failures = {status: response["description"] for status, response in responses.items() if status != "200"}
    return ", ".join(f"{status} {' '.join(CODE.findall(text))}" for status, text in failures.items())
