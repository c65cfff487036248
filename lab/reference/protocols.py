"""The pages on HTTP, made of the OpenAPI document of a server with every feature, and on gRPC, made of the protos."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor, ServiceDescriptor

from deployments.contract.batch import Batch
from deployments.ingress.http import documents
from deployments.ingress.ingress import Ingress
from deployments.ingress.protocol import Served, Serves, Service, services
from deployments.ingress.settings import IngressSettings
from deployments.observe.observer import Observer
from ensemble_features.feedback import labels as feedback
from ensemble_features.loading import feature as loading
from ensemble_features.loading.feature import ModelControl
from ensemble_features.page import live
from ensemble_features.page.stats import Stats
from lab.reference.pages import code, first_paragraph, kind, table

# Of an error, in the description of a status.
CODE = re.compile(r"`\w+`(?=: )")


def http() -> str:
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
    service = Service(ingress, (), lambda: True, features=[_Features()])
    return documents.openapi(service.routes)


class _Features(Serves):
    """The paths of every feature."""

    def serve(self, service: Service) -> Served:
        """Return the routes; nobody calls them."""
        control = ModelControl.__new__(ModelControl)
        figures = live.routes(service, Stats(), "", "")
        return Served(feedback.routes(service.ingress, _nobody) | loading.routes(service.ingress, control) | figures)


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


ROOT = Path(__file__).parent.parent.parent
TYPES = {
    number: name.removeprefix("TYPE_").lower()
    for name, number in vars(FieldDescriptor).items()
    if name.startswith("TYPE_") and isinstance(number, int)
}


def grpc() -> str:
    """Write the page: services, and then messages by proto."""
    served = services(None)
    parts = [*map(_service, served)]
    for file in dict.fromkeys(service.file for service in served):
        if (path := _path(file)) is not None:
            parts += [f"## {Path(path).name}\n", f"[`{path}`](../../{path})\n"]
            parts += [_message(message) for message in file.message_types_by_name.values() if message.fields]
    return "\n".join(parts)


def _path(file: FileDescriptor) -> str | None:
    """Find a proto in the checkout; None if it is another project's."""
    folders = (ROOT, *ROOT.glob("packages/*"), *ROOT.glob("packages/plugins/*"))
    found = (folder / file.name for folder in folders)
    return next((str(path.relative_to(ROOT)) for path in found if path.exists()), None)


def _service(service: ServiceDescriptor) -> str:
    rows = [(code(each.name), code(each.input_type.name), code(each.output_type.name)) for each in service.methods]
    return f"## {service.full_name}\n\n{table(('method', 'request', 'response'), rows)}"


def _message(message: Descriptor, above: str = "") -> str:
    name = f"{above}{message.name}"
    rows = [(str(field.number), code(field.name), _kind(field)) for field in message.fields]
    inner = [each for each in message.nested_types if not each.GetOptions().map_entry]
    text = f"### {name}\n\n{table(('number', 'field', 'type'), rows)}"
    return "\n".join([text, *(_message(each, f"{name}.") for each in inner)])


def _kind(field: FieldDescriptor) -> str:
    kind = field.message_type or field.enum_type
    name = kind.name if kind is not None else TYPES[field.type]
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        key, value = field.message_type.fields
        return f"map of {code(TYPES[key.type])} to {_kind(value)}"
    repeated = "repeated " if field.is_repeated else ""
    oneof = "" if field.containing_oneof is None else f", one of {code(field.containing_oneof.name)}"
    return f"{repeated}{code(name)}{oneof}"
