"""The page on gRPC, made of the protos."""

from __future__ import annotations

from pathlib import Path

from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor, ServiceDescriptor

from deployments.ingress.protocol import services
from lab.reference.pages import code, table

ROOT = Path(__file__).parent.parent.parent
TYPES = {
    number: name.removeprefix("TYPE_").lower()
    for name, number in vars(FieldDescriptor).items()
    if name.startswith("TYPE_") and isinstance(number, int)
}


def page() -> str:
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
