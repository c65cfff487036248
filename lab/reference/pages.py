"""The pages on commands, errors, metrics and the Python interfaces, and tables of Markdown."""

from __future__ import annotations

import ast
import importlib
import inspect
import io
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from textwrap import dedent
from typing import Any
from unittest.mock import patch

from deployments.contract.errors import EnsembleError, errors_by_code
from deployments.serving.ingress_replica import IngressReplica
from ensemble_features.feedback.feature import Feedback
from ensemble_models.options import Table
from ensemble_serving import Client, NoResponse, ResponseTimeout
from graph import app
from scripts.cli import Command, groups
from scripts.shipped import CHECKOUT


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Write a table; its cells may hold any text of a line."""
    escaped = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    return Table(head, escaped, words=range(len(head))).markdown()


def prose(text: str) -> str:
    """Escape `<` in text, besides where the text is code."""
    parts = text.split("`")
    return "`".join(part if i % 2 else part.replace("<", "&lt;") for i, part in enumerate(parts))


def code(text: object) -> str:
    """Format text as code; nothing for no text."""
    return f"`{text}`" if str(text) else ""


def first_paragraph(text: str | None) -> str:
    """Return the first paragraph of a docstring, in a line."""
    return " ".join((text or "").strip().split("\n\n")[0].split())


WIDTH = 100
FOLDERS = ("deployments", "graph", "packages/plugins")
# By the class of a metric, its type at Prometheus.
KINDS = {
    **dict.fromkeys(("TaggedCounter", "Counter"), "counter"),
    "TaggedGauge": "gauge",
    "TaggedHistogram": "histogram",
}
COUNTED = "_total"
# Words for types of JSON.
TYPES = {"object": "mapping", "string": "text"}


def kind(field: Mapping[str, Any], named: Callable[[str], str]) -> str:
    """Describe a JSON schema in words, with its bounds; `named` describes a schema that has a name."""
    if "$ref" in field:
        return named(field["$ref"].rpartition("/")[2])
    for several in ("anyOf", "oneOf"):
        if several in field:
            kinds = [kind(each, named) for each in field[several] if each.get("type") != "null"]
            return " or ".join(dict.fromkeys(kinds))
    if "enum" in field:
        return " or ".join(code(each) for each in field["enum"])
    if "const" in field:
        return code(field["const"])
    if field.get("type") == "array":
        items = field.get("items") or {"type": "value"}
        inner = [kind(each, named) for each in field.get("prefixItems", [items])]
        return f"list of {', '.join(dict.fromkeys(inner))}"
    if isinstance(values := field.get("additionalProperties"), dict):
        return f"mapping of names to {kind(values, named)}"
    return f"{TYPES.get(field.get('type', ''), field.get('type', 'value'))}{_bounds(field)}"


def _bounds(field: Mapping[str, Any]) -> str:
    low = field.get("minimum", field.get("exclusiveMinimum"))
    high = field.get("maximum", field.get("exclusiveMaximum"))
    above = "more than " if "exclusiveMinimum" in field else ""
    below = "less than " if "exclusiveMaximum" in field else ""
    if low is not None and high is not None:
        return f", {above}{_number(low)} to {below}{_number(high)}"
    if low is not None:
        return f", {above or 'at least '}{_number(low)}"
    return "" if high is None else f", {below or 'at most '}{_number(high)}"


def _number(value: float) -> str:
    return f"{int(value):,}" if value == int(value) else str(value)


def commands() -> str:
    """Write the page: the commands by group."""
    parts = []
    for title, group in groups().items():
        parts.append(f"## {title}\n")
        for name, command in group.items():
            parts.append(f"### ensemble {name}\n\n{command.help}\n\n```text\n{help_of(name, command)}```\n")
    return "\n".join(parts)


def help_of(name: str, command: Command) -> str:
    """Return the text that a command prints for `--help`, without this machine's folders."""
    out = io.StringIO()
    module = importlib.import_module(command.module)
    with (
        patch.object(sys, "argv", [f"ensemble {name}", "--help"]),
        patch.dict(os.environ, {"COLUMNS": str(WIDTH)}),
        redirect_stdout(out),
        suppress(SystemExit),
    ):
        module.main()
    return re.sub(rf"{re.escape(str(CHECKOUT))}/?", "", out.getvalue())


def errors() -> str:
    """Write the page: a row for each code, by status."""
    ours = ((name, error) for name, error in errors_by_code().items() if error.__module__ == EnsembleError.__module__)
    known = sorted(ours, key=lambda each: (each[1].http_status, each[0]))
    return table(("code", "HTTP", "gRPC", "whose fault", "what it means"), [_row(name, error) for name, error in known])


def _row(name: str, error: type[EnsembleError]) -> tuple[str, ...]:
    status = f"{error.http_status}{', retry' if error.retry else ''}"
    meaning = "The server failed; its log has the cause." if error is EnsembleError else first_paragraph(error.__doc__)
    return code(name), status, error.grpc_status, "the server's" if error.is_fault else "the caller's", meaning


@dataclass(frozen=True, order=True)
class Metric:
    """A metric, by its name at Prometheus without Ray's prefix `ray_`, with its own labels."""

    name: str
    kind: str
    labels: tuple[str, ...]
    description: str


def metrics() -> str:
    """Write the page: a row for each metric, by name."""
    rows = [
        (code(f"ray_{each.name}"), each.kind, ", ".join(map(code, each.labels)), each.description)
        for each in registered()
    ]
    return table(("metric", "type", "labels", "what it counts"), rows)


def registered() -> list[Metric]:
    """Find the metrics in the source, because a feature registers its own ones only when it is on."""
    files = (file for folder in FOLDERS for file in (CHECKOUT / folder).rglob("*.py"))
    calls = (node for file in files for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))))
    return sorted({metric for call in calls if isinstance(call, ast.Call) for metric in _registered_by(call)})


def _registered_by(call: ast.Call) -> Iterator[Metric]:
    kind = KINDS.get(getattr(call.func, "id", ""), "")
    described = (keyword.value for keyword in call.keywords if keyword.arg == "description")
    name, description, *labels = *_texts([*call.args[:1], *described, *call.args[1:]]), "", ""
    if kind and name.startswith("ensemble_"):
        yield Metric(name + COUNTED * (kind == "counter"), kind, tuple(filter(None, labels)), description)


def _texts(expressions: Iterable[ast.expr]) -> Iterator[str]:
    """Yield the texts among the arguments of a call."""
    for each in expressions:
        if isinstance(each, ast.Constant) and isinstance(each.value, str):
            yield each.value
        elif isinstance(each, ast.Starred) and isinstance(each.value, ast.Tuple):
            yield from _texts(each.value.elts)


HANDLE = """`ray.serve.get_app_handle("ensemble")` returns the handle. A call is `handle.classify.remote(...)`;
`.result()` or `await` returns its result.
"""
PARTS: dict[str, tuple[str, dict[str, Callable[..., Any]]]] = {
    "Client: `from ensemble_serving import Client`": (
        "",
        {
            "Client": Client,
            "Client.classify": Client.classify,
            "Client.as_completed": Client.as_completed,
            "Client.submit": Client.submit,
            "Client.close": Client.close,
            "NoResponse": NoResponse,
            "ResponseTimeout": ResponseTimeout,
        },
    ),
    "Handle": (HANDLE, {"handle.classify": IngressReplica.classify, "handle.feedback": Feedback.feedback}),
    "Application: `graph.app`": ("", {"build": app.build, "application": app.application}),
}
# A section of a docstring in Google's style, and an entry of one with its continued lines.
SECTION = re.compile(r"^(Args|Raises|Yields|Returns):\n((?:    .*\n?|\n)+)", re.MULTILINE)
ENTRY = re.compile(r"^    (\w+): (.*(?:\n {8}.*)*)", re.MULTILINE)
EXAMPLE = re.compile(r"\n\n((?:    .*(?:\n|$))+)")


def python() -> str:
    """Write the page: a section for each interface, with a heading for each class and function."""
    parts = []
    for title, (text, objects) in PARTS.items():
        parts += [f"## {title}\n", *([text] if text else [])]
        parts += [_described(name, documented) for name, documented in objects.items()]
    return "\n".join(parts)


def _described(name: str, documented: Callable[..., Any]) -> str:
    text = inspect.getdoc(documented) or ""
    if isinstance(documented, type) and issubclass(documented, Exception):
        return f"### {name}\n\n{text}\n"
    if isinstance(documented, type):
        # The arguments of a class are described at its `__init__`.
        made = inspect.getdoc(vars(documented)["__init__"]) or ""
        text = "\n\n".join([text, made.partition("\n")[2].strip()])
    return f"### {name}\n\n```python\n{name}{_signature(documented)}\n```\n\n{_docstring(text)}"


def _signature(documented: Callable[..., Any]) -> str:
    signature = inspect.signature(documented)
    named = [each for name, each in signature.parameters.items() if name != "self"]
    # Annotations are texts, in quotes.
    return re.sub(r"(: |-> )'([^']*)'", r"\1\2", str(signature.replace(parameters=named)))


def _docstring(text: str) -> str:
    """Write a docstring as Markdown: its sections as lists, its example as code."""
    sections = [
        f"{title}:\n\n" + "".join(f"- {code(name)}: {' '.join(said.split())}\n" for name, said in ENTRY.findall(body))
        if ENTRY.search(body)
        else f"{title}: {' '.join(body.split())}\n"
        for title, body in SECTION.findall(text)
    ]
    prose = EXAMPLE.sub(lambda found: f"\n\n```python\n{dedent(found[1]).strip()}\n```\n", SECTION.sub("", text))
    return "\n".join([f"{prose.strip()}\n", *sections])
